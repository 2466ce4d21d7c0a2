package graph_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestReplayOnDevice launches a graph many times, blocking and on streams, with other calls in between.
func TestReplayOnDevice(t *testing.T) {
	for _, algorithm := range []ubcoll.Algorithm{"", "two-shot"} {
		for _, n := range []int{1, 2, 3} {
			for _, queued := range []bool{false, true} {
				if testkit.Daily() && (n != 2 || queued != (algorithm == "")) {
					continue // the same code runs for others
				}
				t.Run(fmt.Sprintf("ranks=%d/%s/queued=%v", n, algorithm, queued), func(t *testing.T) {
					gputest.Run(t, n, ubcoll.Options{Algorithm: algorithm}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						a, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
						b, err2 := gputest.Floats(ctx, c, dev, 5000, 1)
						if err := errors.Join(err1, err2); err != nil {
							return err
						}
						view, sync, end, err := gputest.View(ctx, c, dev, queued)
						if err != nil {
							return err
						}
						defer end()
						g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error {
							return errors.Join(coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum), coll.Barrier(ctx, c),
								coll.AllReduce(ctx, c, a.Vec(), b.Vec(), ubcoll.Max))
						})
						if err != nil {
							return err
						}
						want := float32(1)
						for i := range 4 {
							if err := g.Launch(ctx); err != nil {
								return err
							}
							want *= float32(n)
							if i == 2 {
								if err := coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum); err != nil {
									return err
								}
								want *= float32(n)
							}
						}
						if err := sync(); err != nil {
							return err
						}
						if o := c.LastOp(); algorithm == "two-shot" && n > 1 && (!o.Src.Direct || !o.Dst.Direct) {
							return fmt.Errorf("not direct: %v", o.String())
						}
						held := check(c, "free of a captured buffer", errors.Is(a.Free(), ubcoll.ErrInUse), true)
						if err := g.Launch(ctx); err != nil {
							return err
						}
						return errors.Join(held, testkit.InOrder(
							g.Close,
							sync,
							func() error { return gputest.All(ctx, c, a, want*float32(n)) },
							func() error {
								return check(c, "launch of a closed graph", errors.Is(g.Launch(ctx), ubcoll.ErrClosed), true)
							},
							func() error { return check(c, "second close", errors.Is(g.Close(), ubcoll.ErrClosed), true) },
							a.Free,
							b.Free))
					})
				})
			}
		}
	}
}

// TestReplayCounts replays operations with vectors of counts and a ring.
func TestReplayCounts(t *testing.T) {
	testkit.LongOrRace(t)
	const n = 3
	gputest.Run(t, n, ubcoll.Options{Algorithm: "ring"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err1 := gputest.Floats(ctx, c, dev, 90000, float32(c.Rank()+1))
		b, err2 := gputest.Floats(ctx, c, dev, 90000, 0)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		counts := []int{0, 89995, 5}
		mine := a.Vec().Slice(0, counts[c.Rank()])
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return errors.Join(coll.AllGatherV(ctx, c, b.Vec(), counts, mine), coll.AllReduce(ctx, c, a.Vec(), b.Vec(), ubcoll.Sum))
		})
		if err != nil {
			return err
		}
		want := []float32{2, 3} // the first elements, and the last ones
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
			want[0], want[1] = 3*want[0], 3*want[1]
			got := make([]float32, a.Len())
			if err := a.CopyTo(ctx, got); err != nil {
				return err
			}
			for i, x := range got {
				w := want[0]
				if i >= 89995 {
					w = want[1]
				}
				if x != w {
					return fmt.Errorf("element %d is %v, not %v", i, x, w)
				}
			}
			want[1] = want[0] // these now have the last rank's first elements
		}
		return errors.Join(g.Close(), a.Free(), b.Free())
	})
}

// TestDivergesOnDevice captures calls that cannot be replayed: all ranks return an error, and the communicator stays
// usable.
func TestDivergesOnDevice(t *testing.T) {
	for _, k := range []struct {
		name   string
		record func(ctx context.Context, c *ubcoll.Comm, device, host ubcoll.Vec) error
		want   error
		text   string
	}{
		{"another count", func(ctx context.Context, c *ubcoll.Comm, v, _ ubcoll.Vec) error {
			v = v.Slice(0, 50+c.Rank())
			return coll.AllReduce(ctx, c, v, v, ubcoll.Sum)
		}, ubcoll.ErrMismatch, "call 0"},
		{"others in one group", func(ctx context.Context, c *ubcoll.Comm, v, _ ubcoll.Vec) error {
			reduce := func(c *ubcoll.Comm) error { return coll.AllReduce(ctx, c, v, v, ubcoll.Sum) }
			if c.Rank() == 0 {
				if err := reduce(c); err != nil {
					return err
				}
			}
			err := ubcoll.Group(ctx, c, func(c *ubcoll.Comm) error {
				if err := reduce(c); err != nil {
					return err
				}
				return reduce(c)
			})
			if err == nil && c.Rank() == 1 {
				err = reduce(c)
			}
			return err
		}, ubcoll.ErrMismatch, "rank 1 calls the same collectives as rank 0, but others of them in one Group"},
		{"host and device", func(ctx context.Context, c *ubcoll.Comm, v, h ubcoll.Vec) error {
			return errors.Join(coll.AllReduce(ctx, c, v, v, ubcoll.Sum), coll.AllReduce(ctx, c, h, h, ubcoll.Sum))
		}, ubcoll.ErrArgument, "call 1"},
		{"both in a call", func(ctx context.Context, c *ubcoll.Comm, v, h ubcoll.Vec) error {
			return coll.AllReduce(ctx, c, v, h, ubcoll.Sum)
		}, ubcoll.ErrArgument, "the source is on host"},
	} {
		t.Run(k.name, func(t *testing.T) {
			gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				a, err1 := gputest.Floats(ctx, c, dev, 100, 1)
				h, err2 := gputest.Floats(ctx, c, ubcoll.Host, 100, 1)
				if err := errors.Join(err1, err2); err != nil {
					return err
				}
				g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error { return k.record(ctx, c, a.Vec(), h.Vec()) })
				if g != nil || !errors.Is(err, k.want) || !strings.Contains(err.Error(), k.text) {
					return fmt.Errorf("rank %d: %v", c.Rank(), err)
				}
				return testkit.InOrder(
					func() error { return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum) },
					func() error { return gputest.All(ctx, c, a, 2) },
					a.Free,
					h.Free)
			})
		})
	}
}

// TestMissingLaunch launches a graph on all ranks except one.
func TestMissingLaunch(t *testing.T) {
	testkit.LongOrRace(t)
	over := make(chan struct{})
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		if c.Rank() == 0 {
			defer close(over)
		}
		a, err := gputest.Floats(ctx, c, dev, 100, 1)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		(*inside.Comm)(c).View().SetTimeout(3 * time.Second) // for the graph's kernels and the agreement on the graph
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		defer g.Close()
		if c.Rank() == 1 {
			<-over
			return nil
		}
		err = g.Launch(ctx)
		var e *ubcoll.Error
		if !errors.Is(err, ubcoll.ErrTimeout) || !errors.As(err, &e) || e.Peer != 1 {
			return fmt.Errorf("launch: %w", err)
		}
		return check(c, "broken", errors.Is(c.Err(), ubcoll.ErrTimeout), true)
	})
}
