package graph_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

func TestMain(m *testing.M) { gputest.Main(8, func() int { return testkit.Main(m) }) }

func run(t *testing.T, n int, f func(ctx context.Context, c *ubcoll.Comm) error) {
	t.Helper()
	require.NoError(t, ubcoll.Local(t.Context(), n, ubcoll.Options{}, f))
}

func check(c *ubcoll.Comm, what string, got, want any) error {
	if got != want {
		return fmt.Errorf("rank %d: %s: %v, not %v", c.Rank(), what, got, want)
	}
	return nil
}

// TestReplay launches a graph many times, on buffers with changing content, blocking and on a stream.
func TestReplay(t *testing.T) {
	for _, count := range testkit.Sample(2, []int{1, 100, 5000, 300000}) {
		for _, queued := range []bool{false, true} {
			t.Run(fmt.Sprintf("count=%d/queued=%v", count, queued), func(t *testing.T) {
				run(t, 3, func(ctx context.Context, c *ubcoll.Comm) error {
					a, err := ubcoll.Alloc[float32](c, ubcoll.Host, count)
					if err != nil {
						return err
					}
					b, err := ubcoll.Alloc[float32](c, ubcoll.Host, count)
					if err != nil {
						return err
					}
					view, sync, end, err := gputest.View(ctx, c, ubcoll.Host, queued)
					if err != nil {
						return err
					}
					defer end()
					g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error {
						return errors.Join(coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum),
							coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Max), coll.Barrier(ctx, c))
					})
					if err != nil {
						return err
					}
					if err := check(c, "calls", g.Len(), 3); err != nil {
						return err
					}
					for k := range 20 {
						for i := range a.Slice() {
							a.Slice()[i] = float32(c.Rank() + k)
						}
						if err := testkit.InOrder(func() error { return g.Launch(ctx) }, sync); err != nil {
							return err
						}
						for i, x := range b.Slice() {
							if x != float32(3+3*k) {
								return fmt.Errorf("rank %d, launch %d: element %d is %v", c.Rank(), k, i, x)
							}
						}
					}
					return testkit.InOrder(
						func() error { return check(c, "free of a captured buffer", errors.Is(a.Free(), ubcoll.ErrInUse), true) },
						g.Close,
						func() error { return check(c, "second close", errors.Is(g.Close(), ubcoll.ErrClosed), true) },
						func() error {
							return check(c, "launch of a closed graph", errors.Is(g.Launch(ctx), ubcoll.ErrClosed), true)
						},
						a.Free,
						b.Free)
				})
			})
		}
	}
}

// TestReplayRefused launches a graph between launches that are refused: each takes and gives back its own registrations
// and memory, not those of the launch before.
func TestReplayRefused(t *testing.T) {
	run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error {
		a, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100000)
		if err != nil {
			return err
		}
		r, err := a.Register(c)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Max)
		})
		if err != nil {
			return err
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		for range 3 {
			if err := errors.Join(g.Launch(ctx), testkit.Wants(g.Launch(over), context.Canceled)); err != nil {
				return err
			}
		}
		return testkit.InOrder(
			func() error { return check(c, "failures", int(c.Stats().Failures), 0) },
			g.Close,
			r.Close,
			a.Free,
			func() error { return check(c, "failures", int(c.Stats().Failures), 0) })
	})
}

// TestRefused makes one rank fail to record: the others' errors have the same class, and name that rank.
func TestRefused(t *testing.T) {
	for _, class := range []error{ubcoll.ErrStale, ubcoll.ErrArgument, ubcoll.ErrLimit, context.Canceled} {
		run(t, 3, func(ctx context.Context, c *ubcoll.Comm) error {
			x, err := ubcoll.Alloc[float32](c, ubcoll.Host, 10)
			if err != nil {
				return err
			}
			g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
				if c.Rank() == 1 {
					return fmt.Errorf("not here: %w", class)
				}
				return coll.AllReduce(ctx, c, x.Vec(), x.Vec(), ubcoll.Sum)
			})
			var e *ubcoll.Error
			if g != nil || !errors.Is(err, class) || !errors.As(err, &e) || c.Rank() != 1 && e.Peer != 1 {
				return fmt.Errorf("rank %d: %v, not %v about rank 1", c.Rank(), err, class)
			}
			return errors.Join(coll.Barrier(ctx, c), x.Free())
		})
	}
}

// TestLateCalls makes calls on the view of a capture that has ended, and closes a graph while a launch of it is queued.
func TestLateCalls(t *testing.T) {
	run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error {
		a, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1000)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		defer s.Close()
		var kept *ubcoll.Comm
		g, err := graph.Capture(ctx, c.On(s), func(c *ubcoll.Comm) error {
			kept = c
			return coll.AllReduce(ctx, c, ubcoll.Of(a.Slice()), ubcoll.Of(a.Slice()), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		late := coll.Barrier(ctx, kept)
		a.Slice()[0] = 1
		if c.Rank() == 0 { // keeps the other rank's launches queued
			time.Sleep(20 * time.Millisecond)
		}
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		return errors.Join(check(c, "a late call", errors.Is(late, ubcoll.ErrClosed), true), testkit.InOrder(
			g.Close,
			func() error { return s.Sync(ctx) },
			func() error { return check(c, "the result", a.Slice()[0], float32(8)) },
			a.Free))
	})
}

// TestHolds shows that a graph finds its buffers after the program has closed its registration, and that calls outside
// the graph do not find memory that only the graph holds.
func TestHolds(t *testing.T) {
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{Register: 1 /* Explicit */}, func(ctx context.Context, c *ubcoll.Comm) error {
		a, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100000)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(a.Vec())
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Max)
		})
		if err != nil {
			return err
		}
		if err := r.Close(); err != nil {
			return err
		}
		if err := g.Launch(ctx); err != nil {
			return err
		}
		direct := c.LastOp().Src.Direct
		if err := coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Max); err != nil {
			return err
		}
		return errors.Join(check(c, "launch is direct", direct, true),
			check(c, "a call outside is direct", c.LastOp().Src.Direct, false), g.Close(), a.Free())
	})
	require.NoError(t, err)
}

// TestCloseDuringLaunch closes a graph whose launches are queued: Close returns at once, and the buffers stay held until the
// last of these launches is over.
func TestCloseDuringLaunch(t *testing.T) {
	run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error {
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		defer s.Close()
		a, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1000)
		if err != nil {
			return err
		}
		a.Slice()[0] = float32(c.Rank())
		g, err := graph.Capture(ctx, c.On(s), func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		token := ubcoll.Of(make([]byte, 1))
		if c.Rank() == 1 { // launches when the other rank has closed the graph, which waits for that
			if _, err := p2p.Recv(ctx, c, 0, token); err != nil {
				return err
			}
		}
		for range 2 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			if err := g.Close(); err != nil {
				return err
			}
			held := a.Free()
			if err := errors.Join(check(c, "held", errors.Is(held, ubcoll.ErrInUse), true),
				check(c, "why", strings.Contains(fmt.Sprint(held), "0 registrations and windows, and 1 graphs"), true),
				check(c, "second close", errors.Is(g.Close(), ubcoll.ErrClosed), true),
				check(c, "launch", errors.Is(g.Launch(ctx), ubcoll.ErrClosed), true)); err != nil {
				return err
			}
			if err := p2p.Send(ctx, c, 1, token); err != nil {
				return err
			}
		}
		if err := s.Sync(ctx); err != nil {
			return err
		}
		if c.Rank() == 1 {
			if err := g.Close(); err != nil {
				return err
			}
		}
		return errors.Join(check(c, "result", a.Slice()[0], float32(2)), a.Free())
	})
}

// TestHoldsBeyondItsCommunicator shows that a graph keeps its buffers after its communicator, with the registrations
// made with it, has ended.
func TestHoldsBeyondItsCommunicator(t *testing.T) {
	for _, abort := range []bool{false, true} {
		err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			a, err := ubcoll.Alloc[float32](d, ubcoll.Host, 1000)
			if err != nil {
				return err
			}
			if _, err := d.RegisterBuffer(a.Vec()); err != nil {
				return err
			}
			g, err := graph.Capture(ctx, d, func(c *ubcoll.Comm) error {
				return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Max)
			})
			if err != nil {
				return err
			}
			if abort {
				d.Abort(errors.New("enough"))
				defer d.Close()
			} else if err := d.Close(); err != nil {
				return err
			}
			held := a.Free()
			return errors.Join(check(c, "held", errors.Is(held, ubcoll.ErrInUse), true),
				check(c, "why", strings.Contains(fmt.Sprint(held), "0 registrations and windows, and 1 graphs"), true), g.Close(), a.Free())
		})
		require.NoError(t, err, "abort: %v", abort)
	}
}

// TestDiverges captures calls that cannot be replayed: all ranks return an error, and the communicator stays usable.
func TestDiverges(t *testing.T) {
	for _, k := range []struct {
		name   string
		record func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error
		want   error
		text   string
	}{
		{"another count", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			n := 100
			if c.Rank() == 1 {
				n = 99
			}
			return errors.Join(coll.Barrier(ctx, c), coll.AllReduce(ctx, c, v.Slice(0, n), v.Slice(0, n), ubcoll.Sum))
		}, ubcoll.ErrMismatch, "call 1"},
		{"fewer calls", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			if c.Rank() == 1 {
				return nil
			}
			return coll.Barrier(ctx, c)
		}, ubcoll.ErrMismatch, "missing on rank 1"},
		{"Go memory", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			x := ubcoll.Of(make([]float32, 10))
			return coll.AllReduce(ctx, c, x, x, ubcoll.Sum)
		}, ubcoll.ErrArgument, "Go memory"},
		{"bad arguments", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllReduce(ctx, c, v, v, ubcoll.Op{})
		}, ubcoll.ErrArgument, "zero Op"},
		{"one rank fails", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			if c.Rank() == 1 {
				return ubcoll.ErrLimit
			}
			return nil
		}, nil, ""},
		{"capture in capture", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			_, err := graph.Capture(ctx, c, func(*ubcoll.Comm) error { return nil })
			return err
		}, ubcoll.ErrArgument, "another capture"},
	} {
		t.Run(k.name, func(t *testing.T) {
			run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error {
				a, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100)
				if err != nil {
					return err
				}
				g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error { return k.record(ctx, c, a.Vec()) })
				if g != nil || err == nil || k.want != nil && !errors.Is(err, k.want) {
					return fmt.Errorf("rank %d: %v", c.Rank(), err)
				}
				if k.text != "" {
					require.Contains(t, err.Error(), k.text)
				}
				return errors.Join(coll.Barrier(ctx, c), a.Free())
			})
		})
	}
}

// TestCollectivesMeanwhile makes a capture and a group fail on one rank or on all: by collectives on the recording communicator
// itself, or by an error that the function ignores. All ranks fail with an error of the same class, and the
// communicator stays usable.
func TestCollectivesMeanwhile(t *testing.T) {
	ways := []struct {
		name string
		do   func(ctx context.Context, c *ubcoll.Comm, f func(*ubcoll.Comm) error) error
	}{
		{"Capture", func(ctx context.Context, c *ubcoll.Comm, f func(*ubcoll.Comm) error) error {
			g, err := graph.Capture(ctx, c, f)
			if err == nil {
				return g.Close()
			}
			return err
		}},
		{"Group", ubcoll.Group},
	}
	for _, k := range []struct {
		name string
		// call returns the error of the wrong call, on the rank that makes it; inner is the function's own argument.
		call func(ctx context.Context, outer, inner *ubcoll.Comm, v ubcoll.Vec) error
		want error
		text string
	}{
		{"a collective", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllReduce(ctx, outer, v, v, ubcoll.Sum)
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"a barrier of another goroutine", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			said := make(chan error)
			go func() { said <- coll.Barrier(ctx, outer) }()
			return <-said
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"on a stream", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			s, err := ubcoll.NewStream((*inside.Vec)(&v).Team().Dev)
			if err != nil {
				return err
			}
			return errors.Join(coll.AllReduce(ctx, outer.On(s), v, v, ubcoll.Sum), s.Close())
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"on another stream", func(ctx context.Context, _, inner *ubcoll.Comm, v ubcoll.Vec) error {
			s, err := ubcoll.NewStream((*inside.Vec)(&v).Team().Dev)
			if err != nil {
				return err
			}
			return errors.Join(coll.AllReduce(ctx, inner.On(s), v, v, ubcoll.Sum), s.Close())
		}, ubcoll.ErrArgument, "another stream"},
		{"a group", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			return ubcoll.Group(ctx, outer, func(g *ubcoll.Comm) error { return coll.Barrier(ctx, g) })
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"a capture", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			_, err := graph.Capture(ctx, outer, func(g *ubcoll.Comm) error { return coll.Barrier(ctx, g) })
			return err
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"a dup", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			_, err := outer.Dup(ctx)
			return err
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"a window", func(ctx context.Context, outer, _ *ubcoll.Comm, v ubcoll.Vec) error {
			_, err := outer.RegisterWindow(ctx, v, 0)
			return err
		}, ubcoll.ErrArgument, "call it on the *Comm that"},
		{"bad arguments", func(ctx context.Context, _, inner *ubcoll.Comm, v ubcoll.Vec) error {
			err := coll.AllReduce(ctx, inner, v, v, ubcoll.Op{})
			return errors.Join(err, ubcoll.ErrArgument) // in a group the call itself returns nil
		}, ubcoll.ErrArgument, "zero Op"},
	} {
		for _, way := range ways {
			for _, only := range testkit.Sample(2, []int{1, -1}) { // the rank that makes the wrong call; -1: all ranks
				t.Run(fmt.Sprintf("%s/%s/only=%d", k.name, way.name, only), func(t *testing.T) {
					on := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						a, err := gputest.Floats(ctx, c, dev, 100, 1)
						if err != nil {
							return err
						}
						trapped := only < 0 || only == c.Rank()
						err = way.do(ctx, c, func(inner *ubcoll.Comm) error {
							if trapped {
								if err := k.call(ctx, c, inner, a.Vec()); !errors.Is(err, k.want) {
									return fmt.Errorf("the call itself: %w", err)
								}
							}
							return coll.AllReduce(ctx, inner, a.Vec(), a.Vec(), ubcoll.Sum)
						})
						// On devices the peers get the class of a refusal, but not its text.
						if !errors.Is(err, k.want) || (trapped || dev.IsHost()) && !strings.Contains(err.Error(), k.text) {
							return fmt.Errorf("rank %d: %w", c.Rank(), err)
						}
						return testkit.InOrder(
							func() error { return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum) },
							func() error { return gputest.All(ctx, c, a, 2) },
							a.Free)
					}
					t.Run("host", func(t *testing.T) {
						run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error { return on(ctx, c, ubcoll.Host) })
					})
					t.Run("device", func(t *testing.T) {
						testkit.LongOrRace(t)
						gputest.Run(t, 2, ubcoll.Options{}, on)
					})
				})
			}
		}
	}
}

// TestMessagesMeanwhile sends messages on a communicator during a capture and a group, which must not affect them.
func TestMessagesMeanwhile(t *testing.T) {
	run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error {
		a, err := gputest.Floats(ctx, c, ubcoll.Host, 100, 1)
		if err != nil {
			return err
		}
		calls := func(inner *ubcoll.Comm) error {
			got := make([]int64, 1)
			_, err := p2p.SendRecv(ctx, c, 1-c.Rank(), ubcoll.Of(got), 1-c.Rank(), ubcoll.Of([]int64{int64(c.Rank())}))
			if err != nil {
				return err
			}
			return errors.Join(check(c, "the message", got[0], int64(1-c.Rank())),
				coll.AllReduce(ctx, inner, a.Vec(), a.Vec(), ubcoll.Sum))
		}
		if err := ubcoll.Group(ctx, c, calls); err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, calls)
		if err != nil {
			return err
		}
		return testkit.InOrder(
			func() error { return g.Launch(ctx) },
			g.Close,
			func() error { return gputest.All(ctx, c, a, 4) },
			a.Free)
	})
}

// TestNothing captures and groups nothing.
func TestNothing(t *testing.T) {
	run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error {
		nothing := func(*ubcoll.Comm) error { return nil }
		g, err := graph.Capture(ctx, c, nothing)
		if g != nil || !errors.Is(err, ubcoll.ErrArgument) || !strings.Contains(err.Error(), "nothing was recorded") {
			return fmt.Errorf("rank %d: an empty capture: %w", c.Rank(), err)
		}
		if err := errors.Join(ubcoll.Group(ctx, c, nothing), coll.Barrier(ctx, c)); err != nil {
			return err
		}
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if err := d.Close(); err != nil {
			return err
		}
		for _, f := range []func(*ubcoll.Comm) error{nothing, nil} {
			_, capture := graph.Capture(ctx, d, f)
			err = errors.Join(err, check(c, "a group on a closed communicator",
				errors.Is(ubcoll.Group(ctx, d, f), ubcoll.ErrClosed), true),
				check(c, "a capture on a closed communicator", errors.Is(capture, ubcoll.ErrClosed), true))
		}
		return err
	})
}

// TestMembers checks OpInfo.Members of a group, and of launches of a graph, blocking and queued.
func TestMembers(t *testing.T) {
	f := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, queued bool) error {
		n := 200000 // elements of an operation that is not small
		if !dev.IsHost() {
			n = 2200000 // and does not go by lines
		}
		a, err1 := gputest.Floats(ctx, c, dev, n, 1)
		b, err2 := gputest.Floats(ctx, c, dev, n, 1)
		view, sync, end, err3 := gputest.View(ctx, c, dev, queued)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		defer end()
		small := a.Vec().Slice(0, 4)
		calls := func(c *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, c, small, small, ubcoll.Sum),
				coll.AllGather(ctx, c, b.Vec(), a.Vec().Slice(0, n/2)), coll.Barrier(ctx, c),
				coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum))
		}
		g, err := graph.Capture(ctx, view, calls)
		if err != nil {
			return err
		}
		for i, do := range []func() error{
			func() error { return ubcoll.Group(ctx, view, calls) },
			func() error { return g.Launch(ctx) },
			func() error { return g.Launch(ctx) },
		} {
			before, launch := c.Stats(), i > 0
			if err := testkit.InOrder(do, sync); err != nil {
				return err
			}
			o, s := c.LastOp(), c.Stats()
			if err := errors.Join(check(c, "members", len(o.Members), 4),
				check(c, "operations", s.Operations-before.Operations, uint64(4)),
				check(c, "bytes", s.Bytes-before.Bytes, uint64(4*(4+n+n)))); err != nil {
				return err
			}
			for i, op := range []string{"all_reduce", "all_gather", "barrier", "all_reduce"} {
				m := o.Members[i]
				number := o.Seq - uint64(3-i)
				if !dev.IsHost() && !queued { // a barrier may be one of the host, which is counted apart
					number = m.Seq
				}
				if err := errors.Join(check(c, "its name", m.Op, op), check(c, "its number", m.Seq, number),
					check(c, "its buffer is used", m.Src.Used, op != "barrier"),
					check(c, "its buffer is direct", m.Src.Direct || m.Dst.Direct, op != "barrier" && (i > 0 || !dev.IsHost())),
					check(c, "it has members", m.Members == nil, true),
					// Small operations are not measured, nor are those that the host only queues.
					check(c, "it was measured", m.Took > 0, (i == 1 || i == 3) && (dev.IsHost() || !queued && !launch)),
					check(c, "it waited", m.Waited > 0, m.Took > 0 && dev.IsHost()),
					check(c, "it waited longer than it took", m.Waited > m.Took, false)); err != nil {
					return fmt.Errorf("member %d: %w", i, err)
				}
			}
			text, last := o.String(), o.Members[3]
			if !strings.Contains(text, "the last of 4 in one") || strings.Contains(text, "; took ") != (o.Took > 0) ||
				o.Took != last.Took || o.Waited != last.Waited {
				return errors.New(text)
			}
		}
		if err := testkit.InOrder(func() error { return coll.Barrier(ctx, view) }, sync); err != nil {
			return err
		}
		return errors.Join(check(c, "members of a call by itself", len(c.LastOp().Members), 0), g.Close(), sync(), a.Free(), b.Free())
	}
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprintf("host/queued=%v", queued), func(t *testing.T) {
			run(t, 2, func(ctx context.Context, c *ubcoll.Comm) error { return f(ctx, c, ubcoll.Host, queued) })
		})
		t.Run(fmt.Sprintf("device/queued=%v", queued), func(t *testing.T) {
			testkit.LongOrRace(t)
			gputest.Run(t, 2, ubcoll.Options{Algorithm: "two-shot"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				return f(ctx, c, dev, queued)
			})
		})
	}
}

// TestLaunchAllocates checks that a launch after the first one allocates nothing.
func TestLaunchAllocates(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	run(t, 1, func(ctx context.Context, c *ubcoll.Comm) error {
		a, err := gputest.Floats(ctx, c, ubcoll.Host, 100, 1)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum), coll.Barrier(ctx, c),
				coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Max))
		})
		if err != nil {
			return err
		}
		n := testing.AllocsPerRun(100, func() {
			if err == nil {
				err = g.Launch(ctx)
			}
		})
		if err != nil {
			return err
		}
		return errors.Join(check(c, "allocations of a launch", n, 0.0), g.Close(), a.Free())
	})
}
