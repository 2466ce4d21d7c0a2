package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestDeviceChannelsBetween makes random rounds of puts, gets and signals on device memory between hosts, blocking, on streams
// and in batches: sizes around those of a call's data, of stages and of what is asked for at once.
func TestDeviceChannelsBetween(t *testing.T) {
	seed := testkit.Seed(t)
	rounds := 60
	if testing.Short() {
		rounds = 25
	}
	if race.Enabled {
		rounds = 8
	}
	for _, hosts := range []string{"ab", "aabb"} {
		t.Run(hosts, func(t *testing.T) {
			gputest.Across(t, hosts, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				for _, peer := range partners(c) {
					if err := farTrades(ctx, c, dev, peer, seed, rounds); err != nil {
						return fmt.Errorf("rank %d with %d: %w", c.Rank(), peer, err)
					}
				}
				// A rank that ends gives page-locked memory back, and the driver waits for the kernels of all ranks of the process.
				return coll.Barrier(ctx, c)
			})
		})
	}
}

// partners are the ranks that this one makes channels with, in an order that all ranks can meet in: one of another host, and
// one of this one if there is any.
func partners(c *ubcoll.Comm) []int {
	if c.Size() == 2 {
		return []int{1 - c.Rank()}
	}
	return []int{(c.Rank() + 2) % 4, c.Rank() ^ 1}
}

func farTrades(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, peer int, seed uint64, rounds int) error {
	const most = 3 << 20
	e, err := openEnd(ctx, c, dev, peer, 2*most)
	if err != nil {
		return err
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	pair := rand.New(rand.NewPCG(seed, uint64(min(c.Rank(), peer)*8+max(c.Rank(), peer))))
	edges := []int{0, 1, 4015, 4016, 4017, 4096, 16 << 10, 16<<10 + 1, 32 << 10, 64 << 10, 64<<10 + 1, 1 << 20, 1<<20 + 1}
	for round := range rounds {
		n := edges[pair.IntN(len(edges))]
		switch pair.IntN(4) {
		case 0:
			n = pair.IntN(5000)
		case 1:
			n = pair.IntN(most - 64)
		}
		x := trade{how: []string{"put", "get", "put with signal"}[pair.IntN(3)], src: pair.IntN(64), dst: most + pair.IntN(64), n: n,
			stream: pair.IntN(2) == 0, batch: pair.IntN(3) > 0}
		x.n = min(x.n, most-64)
		salt := pair.Uint64()
		of := func(rank int) []byte { return testkit.Bytes(rand.New(rand.NewPCG(salt, uint64(rank))), x.n) }
		host := bytes.Repeat([]byte{0xa5}, 2*most)
		copy(host[x.src:], of(c.Rank()))
		if err := e.buf.CopyFrom(ctx, host); err != nil {
			return err
		}
		meet := func() error {
			return testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) })
		}
		if err := meet(); err != nil {
			return err
		}
		ch := e.ch
		if x.stream {
			ch = ch.On(s)
		}
		if err := x.run(ctx, ch, 0); err != nil {
			return fmt.Errorf("round %d, %+v: %w", round, x, err)
		}
		if x.stream {
			if err := s.Sync(ctx); err != nil {
				return fmt.Errorf("round %d, %+v: %w", round, x, err)
			}
		}
		got := make([]byte, 2*most)
		if err := e.buf.CopyTo(ctx, got); err != nil {
			return err
		}
		copy(host[x.dst:], of(peer))
		if !bytes.Equal(got, host) {
			return fmt.Errorf("round %d: wrong data after %+v", round, x)
		}
		if err := meet(); err != nil {
			return err
		}
	}
	return errors.Join(s.Close(), e.close())
}

// TestDeviceChannelsBetweenRefused calls what does not cross hosts.
func TestDeviceChannelsBetweenRefused(t *testing.T) {
	gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), 1000)
		if err != nil {
			return err
		}
		return errors.Join(
			testkit.Wants(e.ch.PutPackets(ctx, 0, 0, 16, p2p.Packet8), ubcoll.ErrNotSupported),
			testkit.Wants(e.ch.GetPackets(ctx, 0, 512, 16, p2p.Packet8), ubcoll.ErrNotSupported),
			testkit.Wants(e.ch.Batch(ctx, func(b *p2p.Channel) error {
				return errors.Join(b.Signal(ctx), b.PutPackets(ctx, 0, 0, 16, p2p.Packet8))
			}), ubcoll.ErrNotSupported),
			testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) }), // nothing was sent
			e.close())
	})
}
