package coll_test

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
)

// exchanged is what a rank has exchanged with all other hosts.
func exchanged(c *ubcoll.Comm) (all ubcoll.HostStats) {
	for _, h := range c.Stats().Hosts {
		all.SentBytes += h.SentBytes
		all.ReceivedBytes += h.ReceivedBytes
		all.SentMessages += h.SentMessages
		all.ReceivedMessages += h.ReceivedMessages
		all.Retries += h.Retries
	}
	return all
}

// meeting lets a test's ranks meet outside of the communicator: what they read in between, no other rank changes.
type meeting struct {
	times []sync.WaitGroup
	at    []int // by rank: how often it has met the others
}

func newMeeting(ranks, times int) *meeting {
	m := &meeting{make([]sync.WaitGroup, times), make([]int, ranks)}
	for i := range m.times {
		m.times[i].Add(ranks)
	}
	return m
}

func (m *meeting) meet(c *ubcoll.Comm) {
	time := &m.times[m.at[c.Rank()]]
	m.at[c.Rank()]++
	time.Done()
	time.Wait()
}

// leave ends a rank's part, so that the others do not wait for one that has failed.
func (m *meeting) leave(c *ubcoll.Comm) {
	for i := range m.times[m.at[c.Rank()]:] {
		m.times[m.at[c.Rank()]+i].Done()
	}
}

// A barrier's rounds have one message that a host sends and one that it receives, of at most 128 bytes with the frame's
// head: by the counters of the wires.
func TestBarrierBytes64Hosts(t *testing.T) {
	hosts := 64
	if race.Enabled { // all connections of 64 hosts, at its speed, can take longer than Open waits
		hosts = 16
	}
	const barriers = 20
	m := newMeeting(hosts, 3)
	requireAll(t, onHosts(t, letters(hosts), func(c *ubcoll.Comm) error {
		defer m.leave(c)
		if err := coll.Barrier(context.Background(), c); err != nil { // until Open's messages have come
			return err
		}
		m.meet(c)
		before := exchanged(c)
		m.meet(c)
		for range barriers {
			if err := coll.Barrier(context.Background(), c); err != nil {
				return err
			}
		}
		m.meet(c)
		after := exchanged(c)
		rounds := uint64(barriers * bits.Len(uint(hosts-1)))
		messages := [2]uint64{after.SentMessages - before.SentMessages, after.ReceivedMessages - before.ReceivedMessages}
		bytes := [2]uint64{after.SentBytes - before.SentBytes, after.ReceivedBytes - before.ReceivedBytes}
		if messages != [2]uint64{rounds, rounds} {
			return fmt.Errorf("rank %d: %d messages sent and received in %d rounds", c.Rank(), messages, rounds)
		}
		if bytes[0] > 128*rounds || bytes[1] > 128*rounds || bytes[0] < 32*rounds || bytes[1] < 32*rounds {
			return fmt.Errorf("rank %d: %d bytes sent and received in %d rounds", c.Rank(), bytes, rounds)
		}
		if c.Rank() == 0 {
			t.Logf("%d hosts: %d bytes sent in %d rounds: %d a round", hosts, bytes[0], rounds, bytes[0]/rounds)
		}
		return nil
	}))
}

// What is counted belongs to the rank, whichever communicator is asked. A rank that leads no host has nothing; one that
// leads in another communicator has that. Hosts have their names, each once.
func TestStatsOfHosts(t *testing.T) {
	const layout = "aabbc"
	m := newMeeting(len(layout), 3)
	requireAll(t, onHosts(t, layout, func(c *ubcoll.Comm) error {
		defer m.leave(c)
		ctx := context.Background()
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		m.meet(c)
		want := map[int][]string{0: {"host-b", "host-c"}, 2: {"host-a", "host-c"}, 4: {"host-a", "host-b"}}
		var got []string
		for _, h := range c.Stats().Hosts {
			got = append(got, h.Host)
			if h.SentBytes == 0 || h.ReceivedBytes == 0 {
				return fmt.Errorf("rank %d: %+v", c.Rank(), h)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want[c.Rank()]) {
			return fmt.Errorf("rank %d has exchanged data with hosts %v, not %v", c.Rank(), got, want[c.Rank()])
		}
		m.meet(c)
		color := map[int]int{1: 0, 3: 0}[c.Rank()] // ranks 1 and 3 lead their hosts in the new communicator
		if c.Rank()%2 == 0 {
			color = -1
		}
		odd, err := c.Split(ctx, color, 0)
		if err != nil {
			return err
		}
		if odd != nil {
			const n = 1 << 20
			if err := checkAcross(odd, n, 0); err != nil {
				return err
			}
			all := c.Stats().Hosts
			if other := map[int]string{1: "host-b", 3: "host-a"}[c.Rank()]; len(all) != 1 || all[0].Host != other || all[0].SentBytes < 4*n {
				return fmt.Errorf("rank %d: %+v", c.Rank(), all)
			}
			if fmt.Sprint(odd.Stats().Hosts[0].Host) != all[0].Host {
				return fmt.Errorf("rank %d: the new communicator says otherwise: %+v", c.Rank(), odd.Stats().Hosts)
			}
			if err := odd.Close(); err != nil {
				return err
			}
		}
		color = -1
		if c.Rank() == 0 || c.Rank() == 3 {
			color = 0
		}
		both, err := c.Split(ctx, color, 0) // rank 0 gets another wire to host-b
		if err != nil || both != nil && both.Close() != nil {
			return fmt.Errorf("rank %d: %v", c.Rank(), err)
		}
		if all := c.Stats().Hosts; c.Rank() == 0 && (len(all) != 2 || all[0].Host != "host-b" || all[1].Host != "host-c") {
			return fmt.Errorf("rank 0, with two wires to host-b: %+v", all)
		}
		m.meet(c)
		if after := c.Stats().Hosts; c.Rank() == 1 && (len(after) != 1 || after[0].SentBytes < 1<<22) {
			return fmt.Errorf("the counts went with the communicator: %+v", after)
		}
		return nil
	}))
}

// On one host there is nothing to count.
func TestStatsOfOneHost(t *testing.T) {
	requireAll(t, onHosts(t, "aa", func(c *ubcoll.Comm) error {
		if all := c.Stats().Hosts; all != nil {
			return fmt.Errorf("%+v", all)
		}
		return nil
	}))
	require.Empty(t, (&ubcoll.Comm{}).Stats().Hosts)
}
