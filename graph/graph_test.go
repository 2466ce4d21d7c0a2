package graph_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/gputest"
)

func TestMain(m *testing.M) { gputest.Main(8, func() int { return await.Main(m) }) }

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

// TestReplay launches a graph many times, on buffers whose content changes, blocking and on a stream.
func TestReplay(t *testing.T) {
	for _, count := range []int{1, 100, 5000, 300000} {
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
						if err := errors.Join(g.Launch(ctx), sync()); err != nil {
							return err
						}
						for i, x := range b.Slice() {
							if x != float32(3+3*k) {
								return fmt.Errorf("rank %d, launch %d: element %d is %v", c.Rank(), k, i, x)
							}
						}
					}
					return errors.Join(check(c, "free of a captured buffer", errors.Is(a.Free(), ubcoll.ErrInUse), true),
						g.Close(), check(c, "second close", errors.Is(g.Close(), ubcoll.ErrClosed), true),
						check(c, "launch of a closed graph", errors.Is(g.Launch(ctx), ubcoll.ErrClosed), true),
						a.Free(), b.Free())
				})
			})
		}
	}
}

// TestLateCalls calls on the view of a capture that is over, and closes a graph while a launch of it is queued.
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
		if c.Rank() == 0 { // so that the other's launches stay queued
			time.Sleep(20 * time.Millisecond)
		}
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		return errors.Join(check(c, "a late call", errors.Is(late, ubcoll.ErrClosed), true), g.Close(), s.Sync(ctx),
			check(c, "the result", a.Slice()[0], float32(8)), a.Free())
	})
}

// TestHolds shows that a graph finds its buffers after the program's own registration is gone, and that calls outside
// the graph do not find what only the graph holds.
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

// TestDiverges captures what cannot be replayed: all ranks say so, and the communicator works.
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

func ExampleCapture() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x, err := ubcoll.Alloc[float64](c, ubcoll.Host, 1)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, x.Vec(), x.Vec(), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		defer g.Close()
		x.Slice()[0] = 1
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			fmt.Println(x.Slice()[0])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 8
	// <nil>
}
