package coll_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestNoAllocation counts Go-heap allocations of calls in their steady state.
func TestNoAllocation(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const runs = 100
	for _, n := range testkit.Sample(3, []int{256, 2, 1 << 20, 20000}) {
		for _, registered := range []bool{true, false} {
			t.Run(fmt.Sprintf("elements=%d/registered=%v", n, registered), func(t *testing.T) {
				err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
					src, dst := ubcoll.Of(make([]float32, n)), ubcoll.Of(make([]float32, n))
					if registered {
						a, err := ubcoll.Alloc[float32](c, ubcoll.Host, n)
						if err != nil {
							return err
						}
						b, err := ubcoll.Alloc[float32](c, ubcoll.Host, n)
						if err != nil {
							return err
						}
						src, dst = a.Vec(), b.Vec()
					}
					half := src.Slice(0, n/2)
					counts := []int{n / 2, n - n/2}
					halves := []int{n / 2, n / 2}
					mine := dst.Slice(0, counts[c.Rank()])
					for _, k := range []struct {
						name string
						call func() error
					}{
						{"all-reduce", func() error { return coll.AllReduce(ctx, c, dst, src, ubcoll.Sum) }},
						{"average", func() error { return coll.AllReduce(ctx, c, dst, src, ubcoll.Avg) }},
						{"reduce-scatter", func() error { return coll.ReduceScatter(ctx, c, dst.Slice(0, n/2), src, ubcoll.Sum) }},
						{"all-gather", func() error { return coll.AllGather(ctx, c, dst, half) }},
						{"broadcast", func() error { return coll.Broadcast(ctx, c, dst, 1) }},
						{"all-to-all", func() error { return coll.AllToAll(ctx, c, dst, src) }},
						{"pre-multiplied sum", func() error { return coll.AllReduce(ctx, c, dst, src, ubcoll.PreMulSum(0.5)) }},
						{"reduce", func() error { return coll.Reduce(ctx, c, dst, src, ubcoll.Max, 1) }},
						{"gather", func() error { return coll.Gather(ctx, c, dst, half, 0) }},
						{"scatter", func() error { return coll.Scatter(ctx, c, dst.Slice(0, n/2), src, 1) }},
						{"all-gather of counts", func() error {
							return coll.AllGatherV(ctx, c, dst, counts, src.Slice(0, counts[c.Rank()]))
						}},
						{"gather of counts", func() error {
							return coll.GatherV(ctx, c, dst, counts, src.Slice(0, counts[c.Rank()]), 1)
						}},
						{"scatter of counts", func() error { return coll.ScatterV(ctx, c, mine, src, counts, 0) }},
						{"all-to-all of counts", func() error { return coll.AllToAllV(ctx, c, dst, halves, src, halves) }},
						{"barrier", func() error { return coll.Barrier(ctx, c) }},
					} {
						var failed error
						call := func() {
							if err := k.call(); err != nil {
								failed = err
							}
						}
						call()
						if c.Rank() == 1 {
							for range runs + 1 { // as many as AllocsPerRun makes
								call()
							}
						} else if got := testing.AllocsPerRun(runs, call); got != 0 {
							failed = fmt.Errorf("%s allocates %v times a call", k.name, got)
						}
						if failed != nil {
							return failed
						}
					}
					return nil
				})
				require.NoError(t, err)
			})
		}
	}
}

// TestNoAllocationOnDevice counts Go-heap allocations of calls that are queued on a stream of a device.
func TestNoAllocationOnDevice(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const runs = 50
	for _, n := range testkit.Sample(2, []int{64, 200_000}) {
		t.Run(fmt.Sprintf("elements=%d", n), func(t *testing.T) {
			gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				a, err := ubcoll.Alloc[float32](c, dev, n)
				if err != nil {
					return err
				}
				b, err := ubcoll.Alloc[float32](c, dev, n)
				if err != nil {
					return err
				}
				_, foreign, end, err := gputest.Foreign(dev)
				if err != nil {
					return err
				}
				own, err := ubcoll.NewStream(dev)
				if err != nil {
					return err
				}
				src, dst, half := a.Vec(), b.Vec(), a.Vec().Slice(0, n/2)
				counts := []int{n / 2, n / 2}
				for i, s := range []*ubcoll.Stream{own, foreign} {
					q := c.On(s)
					for _, k := range []struct {
						name string
						call func() error
					}{
						{"all-reduce", func() error { return coll.AllReduce(ctx, q, dst, src, ubcoll.Sum) }},
						{"reduce-scatter", func() error { return coll.ReduceScatter(ctx, q, dst.Slice(0, n/2), src, ubcoll.Sum) }},
						{"all-gather", func() error { return coll.AllGather(ctx, q, dst, half) }},
						{"broadcast", func() error { return coll.Broadcast(ctx, q, dst, 1) }},
						{"all-gather of counts", func() error { return coll.AllGatherV(ctx, q, dst, counts, half) }},
						{"barrier", func() error { return coll.Barrier(ctx, q) }},
					} {
						var failed error
						call := func() {
							if err := k.call(); err != nil {
								failed = err
							}
						}
						// The first use registers the buffer and loads the kernel; the peer imports the buffer in the
						// background.
						for imported := false; !imported; {
							call()
							o := q.LastOp()
							mine := []uint32{1}
							if failed == nil && strings.Contains(o.Src.Why+o.Dst.Why, "import") {
								mine[0] = 0
							}
							if err := testkit.InOrder(
								func() error { return s.Sync(ctx) },
								func() error { return coll.AllReduce(ctx, c, ubcoll.Of(mine), ubcoll.Of(mine), ubcoll.Min) }); err != nil {
								return err
							}
							imported = mine[0] == 1
						}
						if c.Rank() == 1 {
							for range runs + 1 { // as many as AllocsPerRun makes
								call()
							}
						} else if got := testing.AllocsPerRun(runs, call); got != 0 {
							failed = fmt.Errorf("%s allocates %v times a call on stream %d", k.name, got, i)
						}
						if err := errors.Join(failed, s.Sync(ctx)); err != nil {
							return err
						}
					}
				}
				return errors.Join(own.Close(), end())
			})
		})
	}
}
