package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/messages"
	"github.com/ubcoll/ubcoll/internal/conform/onesided"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
	"github.com/ubcoll/ubcoll/p2p"
)

// twoHosts runs f on two goroutine ranks that claim to be on different hosts.
func twoHosts(t *testing.T, f conform.Suite) {
	t.Helper()
	defer testkit.NoLeaks(t)()
	require.NoError(t, conform.Block(1, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, f))
}

// TestBetweenWires sends messages over networks that do what TCP on this machine never does, and check what is asked of
// them.
func TestBetweenWires(t *testing.T) {
	for k, w := range transporttest.Kinds {
		for i, l := range []conform.Layout{conform.Block(1, 1), conform.Cyclic(2, 1, 1)} {
			if !testkit.Full() {
				t.Setenv("CONFORM_PROGRAMS", "40")
				t.Setenv("CONFORM_ATOMICS", "50")
				if k%2 != i {
					continue
				}
			}
			suites := []struct {
				name string
				run  conform.Suite
			}{{"programs", messages.Programs}, {"p2p", messages.P2P}, {"handles", onesided.Handles}, {"windows", onesided.Windows},
				{"channels", onesided.Channels}, {"access", onesided.Access}, {"atomics", onesided.Atomics}}
			if !testkit.Full() && (race.Enabled || !w.TwoSided) { // internal/conform/hosts has the others over TCP
				suites = suites[:4]
			}
			for j, s := range suites {
				t.Run(w.String()+"/"+l.String()+"/"+s.name, func(t *testing.T) {
					testkit.Turn(t, k+j, 3)
					require.NoError(t, l.RunOver(t.Context(), transporttest.New(t, w).Node, s.run))
				})
			}
		}
	}
}

// TestBetweenConnections sends messages over several connections, which do not keep the order of puts to different places.
func TestBetweenConnections(t *testing.T) {
	testkit.LongOrRace(t)
	file := filepath.Join(t.TempDir(), "tuning.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"version":2,"hosts":{"connections":3}}`), 0o600))
	t.Setenv(env.Tuning.Name, file)
	twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
		return conform.Each(ctx, c, messages.P2P, messages.Programs)
	})
}

// Messages that need no receive on one host need none between hosts: their Sends return while the peer is in no call. They
// can be received after the sender has closed its communicator, and everything else it had.
func TestBetweenUnreceived(t *testing.T) {
	const messages = 8
	for _, bytes := range []int{0, 8, 2048} {
		sent := make(chan struct{})
		twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
			if c.Rank() == 0 {
				for i := range messages {
					if err := p2p.Send(ctx, c, 1, ubcoll.Of(filled(bytes, byte(i)))); err != nil {
						return err
					}
				}
				time.AfterFunc(50*time.Millisecond, func() { close(sent) }) // the communicator is closed, usually
				return nil
			}
			<-sent
			for i := range messages {
				dst := make([]byte, bytes+1)
				n, err := p2p.Recv(ctx, c, 0, ubcoll.Of(dst))
				if err != nil || n != bytes || string(dst[:n]) != string(filled(bytes, byte(i))) {
					return conform.Fail(c, "message %d: %d bytes, %w", i, n, err)
				}
			}
			_, err := p2p.Recv(ctx, c, 0, ubcoll.Of(make([]byte, 8)))
			if !errors.Is(err, ubcoll.ErrPeerLost) || !strings.Contains(err.Error(), "rank 0 closed its communicator") {
				return conform.Fail(c, "a message that was never sent: %v", err)
			}
			return nil
		})
	}
}

func filled(n int, x byte) []byte { return bytes.Repeat([]byte{x}, n) }

// The slots that a receiver has emptied are the sender's again, however few: it can always send eight messages more than
// were received.
func TestBetweenSlots(t *testing.T) {
	const ahead = 8
	turn := make(chan int)
	twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
		x := []int64{0}
		for taken := range 100 {
			if c.Rank() == 1 {
				if taken > 0 {
					if n, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x)); n != 1 || err != nil || x[0] != int64(taken-1) {
						return conform.Fail(c, "message %d: %d, %w", taken-1, x[0], err)
					}
				}
				turn <- taken
				<-turn
				continue
			}
			<-turn
			for x[0] < int64(taken+ahead) { // rank 1 is in no call
				if err := p2p.Send(ctx, c, 1, ubcoll.Of(x)); err != nil {
					return err
				}
				x[0]++
			}
			turn <- 0
		}
		return nil
	})
}

// A rank that closes its communicator has not taken large messages, and sends none. Its process goes on, with another
// communicator.
func TestBetweenCloses(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error{
		"send": func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error { return p2p.Send(ctx, c, 0, x) },
		"recv": func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error {
			return testkit.ErrOf(p2p.Recv(ctx, c, 0, x))
		},
		"isend": func(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error {
			r, err := p2p.ISend(ctx, c, 0, x)
			for done := false; err == nil && !done; {
				done, err = r.Test()
			}
			return err
		},
	} {
		for _, talked := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
					x := ubcoll.Of(make([]byte, 100_000))
					parent := c
					c, err := parent.Dup(ctx)
					if err != nil {
						return err
					}
					if talked {
						y := ubcoll.Of(make([]byte, 100_000))
						if _, err := p2p.SendRecv(ctx, c, 1-c.Rank(), y, 1-c.Rank(), x); err != nil {
							return err
						}
					}
					if c.Rank() == 0 {
						return testkit.InOrder(c.Close, func() error { return coll.Barrier(ctx, parent) })
					}
					err = call(ctx, c, x)
					var e *ubcoll.Error
					if !errors.Is(err, ubcoll.ErrPeerLost) || !errors.As(err, &e) || e.Peer != 0 ||
						!strings.Contains(err.Error(), "rank 0 closed its communicator") {
						return conform.Fail(c, "%v", err)
					}
					return testkit.InOrder(c.Close, func() error { return coll.Barrier(ctx, parent) })
				})
			})
		}
	}
}

// What a wait in vain says.
func TestBetweenTimeout(t *testing.T) {
	require.NoError(t, conform.Block(1, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 0 {
			over, cancel := context.WithTimeout(ctx, testkit.Limit)
			defer cancel()
			for c.Err() == nil && over.Err() == nil { // in no call
				time.Sleep(time.Millisecond)
			}
			if err := c.Err(); !errors.Is(err, ubcoll.ErrTimeout) {
				return conform.Fail(c, "the other rank's timeout: %v", err)
			}
			return nil
		}
		(*inside.Comm)(c).View().SetTimeout(200 * time.Millisecond)
		_, err := p2p.Recv(ctx, c, 0, ubcoll.Of(make([]byte, 10)))
		if !errors.Is(err, ubcoll.ErrTimeout) || !strings.Contains(err.Error(), "nothing from rank 0 for 200ms") {
			return conform.Fail(c, "%v", err)
		}
		return nil
	}))
}

// Once a receive or a send has returned an error, nothing is written to its memory any more, and nothing read from it:
// whatever was under way. The memory can be freed.
func TestBetweenCancelled(t *testing.T) {
	size := 32 << 20
	if race.Enabled {
		size = 4 << 20
	}
	for round := range testkit.Often(60) {
		wait := time.Duration(round%20) * 300 * time.Microsecond
		recv := round%2 == 0
		twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[byte](c, ubcoll.Host, size)
			if err != nil {
				return err
			}
			mine := b.Slice()
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			over, cancel := context.WithCancel(ctx)
			defer cancel()
			gives := recv == (c.Rank() == 1) // gives up
			if gives {
				time.AfterFunc(wait, cancel)
			}
			if c.Rank() == 0 {
				err = p2p.Send(over, c, 1, b.Vec())
			} else {
				_, err = p2p.Recv(over, c, 0, b.Vec())
			}
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ubcoll.ErrAborted) && !errors.Is(err, ubcoll.ErrPeerLost) {
				return conform.Fail(c, "%v", err)
			}
			if err != nil && c.Rank() == 1 {
				for i := range mine {
					mine[i] = 0xee
				}
				time.Sleep(3 * time.Millisecond)
				if bytes.Count(mine, []byte{0xee}) != len(mine) {
					return conform.Fail(c, "written after the receive had failed")
				}
			}
			return b.Free()
		})
	}
}

// Small messages that wait for a free slot travel together: a window of 64 takes fewer puts than messages.
func TestBetweenWindow(t *testing.T) {
	const window, rounds = 64, 20
	twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
		var x p2p.Exchange
		for i := range window {
			v := ubcoll.Of([]int64{int64(i)})
			if c.Rank() == 0 {
				x.Send(1, v)
			} else {
				x.Recv(0, v)
			}
		}
		if err := x.Do(ctx, c); err != nil {
			return err
		}
		before := sent(c)
		for range rounds {
			if err := x.Do(ctx, c); err != nil {
				return err
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
		}
		if puts := sent(c) - before; puts > window*rounds/2 || c.Rank() == 0 && puts < rounds {
			return conform.Fail(c, "%d puts for %d messages", puts, window*rounds)
		}
		return nil
	})
}

// sent is how many messages this rank has sent to other hosts.
func sent(c *ubcoll.Comm) (n uint64) {
	for _, h := range c.Stats().Hosts {
		n += h.SentMessages
	}
	return n
}
