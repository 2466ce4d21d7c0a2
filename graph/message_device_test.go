package graph_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// ring is each rank's memory for passing bytes to the next rank.
type ring struct {
	src, dst, more *ubcoll.Buffer[byte]
	to, from       int
}

func newRing(c *ubcoll.Comm, dev ubcoll.Device, n int) (*ring, error) {
	src, err1 := ubcoll.Alloc[byte](c, dev, n)
	dst, err2 := ubcoll.Alloc[byte](c, dev, n)
	more, err3 := ubcoll.Alloc[byte](c, dev, n)
	return &ring{src, dst, more, (c.Rank() + 1) % c.Size(), (c.Rank() + c.Size() - 1) % c.Size()}, errors.Join(err1, err2, err3)
}

// round launches on new data, and checks what has arrived.
func (r *ring) round(ctx context.Context, c *ubcoll.Comm, round int, launch func() error) error {
	n := r.src.Len()
	mine := bytes.Repeat([]byte{byte(16*round + c.Rank() + 1)}, n)
	if err := testkit.InOrder(func() error { return r.src.CopyFrom(ctx, mine) }, launch); err != nil {
		return fmt.Errorf("round %d: %w", round, err)
	}
	got := make([]byte, n)
	if err := r.dst.CopyTo(ctx, got); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{byte(16*round + r.from + 1)}, n)) {
		return fmt.Errorf("round %d: wrong data: %d", round, got[0])
	}
	return nil
}

func (r *ring) free() error { return errors.Join(r.src.Free(), r.dst.Free(), r.more.Free()) }

// TestReplayMessages captures messages of all sizes, by kernels and by copy engines, beside collectives, and replays
// them.
func TestReplayMessages(t *testing.T) {
	const huge = 33 << 20
	for i, k := range []struct {
		name  string
		ranks int
		n     int
		way   string
		calls func(ctx context.Context, c *ubcoll.Comm, r *ring) error
	}{
		{"small", 2, 1000, "packets", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			_, err := p2p.SendRecv(ctx, c, r.from, r.dst.Vec(), r.to, r.src.Vec())
			return err
		}},
		{"large", 3, 200 << 10, "push", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			_, err := p2p.SendRecv(ctx, c, r.from, r.dst.Vec(), r.to, r.src.Vec())
			return err
		}},
		{"oneself", 1, huge, "push", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			_, err := p2p.SendRecv(ctx, c, r.from, r.dst.Vec(), r.to, r.src.Vec())
			return err
		}},
		{"copy engine", 2, huge, "copy engine", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			_, err := p2p.SendRecv(ctx, c, r.from, r.dst.Vec(), r.to, r.src.Vec())
			return err
		}},
		{"copy engine, one way at a time", 3, huge, "", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			send := func() error { return p2p.Send(ctx, c, r.to, r.src.Vec()) }
			recv := func() error {
				_, err := p2p.Recv(ctx, c, r.from, r.dst.Vec())
				return err
			}
			if c.Rank() == 0 {
				return testkit.InOrder(send, recv)
			}
			return testkit.InOrder(recv, send)
		}},
		{"copy engine in a group", 3, huge, "", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			var g p2p.Exchange
			s, d, more := r.src.Vec(), r.dst.Vec(), r.more.Vec()
			small, other := 100, (c.Rank()+2)%3
			g.Send(r.to, s.Slice(0, small))
			g.Recv(r.from, d.Slice(0, small))
			g.Send(r.to, s.Slice(small, huge))
			g.Recv(r.from, d.Slice(small, huge))
			g.Send(other, s.Slice(0, small)) // beside the messages of copy engines
			g.Send(c.Rank(), s.Slice(0, 1))
			g.Recv((c.Rank()+1)%3, more.Slice(0, small))
			g.Recv(c.Rank(), more.Slice(small, small+1))
			g.Send(r.to, s.Slice(0, small))
			g.Recv(r.from, d.Slice(0, small))
			return g.Do(ctx, c)
		}},
		{"beside collectives", 2, 5000, "descriptors", func(ctx context.Context, c *ubcoll.Comm, r *ring) error {
			one := r.dst.Vec().Slice(0, 1)
			return testkit.InOrder(
				func() error { return coll.Barrier(ctx, c) },
				func() error { return coll.AllReduce(ctx, c, one, one, ubcoll.Max) },
				func() error { return testkit.ErrOf(p2p.SendRecv(ctx, c, r.from, r.dst.Vec(), r.to, r.src.Vec())) },
				func() error { return coll.Barrier(ctx, c) })
		}},
	} {
		for _, queued := range []bool{false, true} {
			if k.n == huge && (queued && k.ranks == 3 || testkit.Daily() || race.Enabled && k.name != "copy engine") ||
				testkit.Daily() && queued == (k.ranks == 2) {
				continue // takes too long
			}
			t.Run(fmt.Sprintf("%s/queued=%v", k.name, queued), func(t *testing.T) {
				testkit.Turn(t, i, 3)
				gputest.Run(t, k.ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					r, err := newRing(c, dev, k.n)
					if err != nil {
						return err
					}
					view, sync, end, err := gputest.View(ctx, c, dev, queued)
					if err != nil {
						return err
					}
					g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error { return k.calls(ctx, c, r) })
					if err != nil {
						return err
					}
					if err := check(c, "free of a captured buffer", errors.Is(r.src.Free(), ubcoll.ErrInUse), true); err != nil {
						return err
					}
					launch := func() error { return testkit.InOrder(func() error { return g.Launch(ctx) }, sync) }
					call := func() error { return testkit.InOrder(func() error { return k.calls(ctx, view, r) }, sync) }
					for round := range 4 {
						if err := r.round(ctx, c, round, launch); err != nil {
							return err
						}
						// Other messages take their places between the launches.
						if k.n < huge {
							if err := r.round(ctx, c, round+1, call); err != nil {
								return fmt.Errorf("between: %w", err)
							}
						}
						if err := coll.Barrier(ctx, c); err != nil { // from here on, the sources belong to the next round
							return err
						}
					}
					if err := g.Launch(ctx); err != nil {
						return err
					}
					if o := c.LastOp(); k.way != "" && (o.Algorithm != k.way || k.n > 1<<16 && !o.Dst.Direct) {
						return fmt.Errorf("last: %v", o.String())
					}
					return errors.Join(g.Close(), sync(), end(), coll.Barrier(ctx, c), r.free())
				})
			})
		}
	}
}

// TestLaunchOnHostStream captures only a barrier on a host stream, and device memory on another rank: the graph is a
// device graph on both, and its launch on that stream is refused.
func TestLaunchOnHostStream(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		r, err := newRing(c, dev, 1000)
		if err != nil {
			return err
		}
		on := dev
		if c.Rank() == 0 {
			on = ubcoll.Host
		}
		view, sync, end, err := gputest.View(ctx, c, on, true)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error {
			err := coll.Barrier(ctx, c)
			if c.Rank() == 1 {
				_, moved := p2p.SendRecv(ctx, c, 1, r.dst.Vec(), 1, r.src.Vec())
				err = errors.Join(err, moved)
			}
			return err
		})
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			err := g.Launch(ctx)
			if !errors.Is(err, ubcoll.ErrArgument) || !strings.Contains(err.Error(), "it is on host") {
				return fmt.Errorf("launch: %w", err)
			}
		}
		return errors.Join(coll.Barrier(ctx, c), sync(), c.Err(), g.Close(), end(), r.free())
	})
}

// TestSomeCapture has ranks that record nothing, or only collectives, beside ranks that record messages.
func TestSomeCapture(t *testing.T) {
	gputest.Run(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		r, err := newRing(c, dev, 100)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			switch c.Rank() {
			case 0:
				return errors.Join(p2p.Send(ctx, c, 1, r.src.Vec()), coll.Barrier(ctx, c))
			case 1:
				_, err := p2p.Recv(ctx, c, 0, r.dst.Vec())
				return errors.Join(err, coll.Barrier(ctx, c))
			}
			return coll.Barrier(ctx, c)
		})
		if err != nil {
			return err
		}
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		// Rank 0 sends in the graph, and rank 1 receives outside of any graph.
		h, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			if c.Rank() == 0 {
				return p2p.Send(ctx, c, 1, r.src.Vec())
			}
			return nil
		})
		if err != nil {
			return err
		}
		for range 3 {
			if err := h.Launch(ctx); err != nil {
				return err
			}
			if c.Rank() == 1 {
				if _, err := p2p.Recv(ctx, c, 0, r.dst.Vec()); err != nil {
					return err
				}
			}
		}
		return errors.Join(g.Close(), h.Close(), coll.Barrier(ctx, c), r.free())
	})
}

// TestUnexpectedMessage makes a large message match another receive than in the capture, because another message came first: no
// rank takes it for the right one.
func TestUnexpectedMessage(t *testing.T) {
	testkit.LongOrRace(t)
	const n = 33 << 20
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		r, err := newRing(c, dev, n)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c.On(s), func(c *ubcoll.Comm) error {
			if c.Rank() == 0 {
				return p2p.Send(ctx, c, 1, r.src.Vec())
			}
			_, err := p2p.Recv(ctx, c, 0, r.dst.Vec())
			return err
		})
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			err = testkit.InOrder(
				func() error { return p2p.Send(ctx, c.On(s), 1, r.src.Vec()) },
				func() error { return g.Launch(ctx) })
		} else {
			err = testkit.InOrder(
				func() error { return g.Launch(ctx) },
				func() error { return testkit.ErrOf(p2p.Recv(ctx, c.On(s), 0, r.src.Vec())) })
		}
		if err != nil {
			return err
		}
		if err := s.Sync(ctx); !errors.Is(err, ubcoll.ErrMismatch) {
			return fmt.Errorf("rank %d: %w", c.Rank(), err)
		}
		s.Close() // returns the error again
		return g.Close()
	})
}
