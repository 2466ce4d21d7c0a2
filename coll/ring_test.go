package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestRingAverage averages half types around the ring, with elements whose sum is beyond the type's range. Errors must
// be within one rounding for each step, and results whose sums are exact in the type must have the exact bits.
func TestRingAverage(t *testing.T) {
	for _, n := range testkit.Sample(3, []int{3, 2, 4, 5, 7, 8}) {
		for _, typ := range []dtype.Type{dtype.Float16, dtype.BFloat16} {
			t.Run(fmt.Sprintf("host/ranks=%d/%v", n, typ), func(t *testing.T) {
				require.NoError(t, ubcoll.Local(t.Context(), n, ubcoll.Options{Algorithm: "ring"},
					func(ctx context.Context, c *ubcoll.Comm) error { return ringAverage(ctx, c, ubcoll.Host, typ) }))
			})
			if n <= 4 {
				t.Run(fmt.Sprintf("device/ranks=%d/%v", n, typ), func(t *testing.T) {
					gputest.Run(t, n, ubcoll.Options{Algorithm: "ring"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						return ringAverage(ctx, c, dev, typ)
					})
				})
			}
		}
	}
}

func ringAverage(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, typ dtype.Type) error {
	// Above eager size, which the ring takes as well, and not a multiple of the ranks.
	const count = 4007
	narrow, widen := func(x float64) uint16 { return uint16(dtype.ToF16(float32(x))) },
		func(v uint16) float64 { return float64(dtype.F16(v).Float32()) }
	largest, large, digits, least := 65504.0, 0.9, 11, math.Ldexp(1, -24)
	if typ == dtype.BFloat16 {
		narrow, widen = func(x float64) uint16 { return uint16(dtype.ToBF16(float32(x))) },
			func(v uint16) float64 { return float64(dtype.BF16(v).Float32()) }
		largest, large, digits, least = math.Ldexp(255, 120), 0.4, 8, math.Ldexp(1, -133)
	}
	n := float64(c.Size())
	value := func(r, i int) float64 {
		random := float64((uint64(r)<<32|uint64(i))*0x9e3779b97f4a7c15>>11) / (1 << 53)
		switch i % 4 {
		case 0: // the sum is beyond the type's range; for float16 already the sum over two ranks
			return widen(narrow(largest * large))
		case 1: // around the largest, both signs; for bfloat16 the float32 sum must be finite too
			return widen(narrow((random - 0.5) * 2 * largest / math.Max(1, float64(typ-dtype.Float16)*n)))
		case 2: // exact sums
			return float64(int(random*31) - 15)
		}
		return widen(narrow(random * least * 100)) // subnormal
	}
	src, err1 := ubcoll.Alloc[byte](c, dev, 2*count)
	dst, err2 := ubcoll.Alloc[byte](c, dev, 2*count)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	host := make([]uint16, count)
	for i := range host {
		host[i] = narrow(value(c.Rank(), i))
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&host[0])), 2*count)
	if err := src.CopyFrom(ctx, raw); err != nil {
		return err
	}
	if err := coll.AllReduce(ctx, c, dst.Vec().As(typ), src.Vec().As(typ), ubcoll.Avg); err != nil {
		return err
	}
	if o := c.LastOp(); o.Algorithm != "ring" {
		return fmt.Errorf("not by ring: %v", o.String())
	}
	if err := dst.CopyTo(ctx, raw); err != nil {
		return err
	}
	for i, v := range host {
		sum, size := 0.0, 0.0
		for r := range c.Size() {
			sum += value(r, i)
			size += math.Abs(value(r, i))
		}
		if typ == dtype.BFloat16 && math.Abs(sum) > math.MaxFloat32 {
			continue // beyond float32 too
		}
		got, want := widen(v), sum/n
		if i%4 == 2 && v != narrow(float64(float32(sum)/float32(n))) {
			return fmt.Errorf("rank %d: element %d is %v, not %v exactly", c.Rank(), i, got, want)
		}
		// One rounding to nearest at each step, of values no larger than the sum of the absolute values.
		most := n * math.Max(size/n*math.Ldexp(1, -digits), least)
		if d := math.Abs(got - want); !(d <= most) {
			return fmt.Errorf("rank %d: element %d is %v, not %v: off by %v, more than %v", c.Rank(), i, got, want, d, most)
		}
	}
	return errors.Join(src.Free(), dst.Free())
}

// A rank of the ring goes no further than its right neighbour allows, which still reads what the rank offers: with a slow
// neighbour it waits before it uses its staging memory again, and before it gives its destination back to the caller.
func TestRingSlowNeighbour(t *testing.T) {
	const n, slow = 3, 1
	const count = 2 * n * coll.RingChunks * 16 << 10 // two rounds of chunks of 64 KiB
	const step = coll.RingChunks                     // in items
	const round = (2*n - 1) * step
	for _, k := range []struct {
		name   string
		direct bool // the destination is registered
		item   int  // the slow rank waits in this one
		left   int  // its neighbour then has done so many
	}{
		{"staging memory", false, round - step, round},
		{"destination", true, 2*round - 1, 2 * round},
	} {
		t.Run(k.name, func(t *testing.T) {
			var returned atomic.Bool // the neighbour's call
			defer coll.AfterWaitLeft(func(ctx context.Context, x *team.Team, left int, items uint64) error {
				if x.Rank() != slow || items != uint64(k.item-step+1) {
					return nil
				}
				if err := x.WaitProgress(ctx, left, uint64(k.left), "test"); err != nil {
					return err
				}
				testkit.Until(func() bool { return returned.Load() || x.WaitsIn(left) != "no wait" })
				return nil
			})()
			require.NoError(t, ubcoll.Local(t.Context(), n, ubcoll.Options{Algorithm: "ring"}, func(ctx context.Context, c *ubcoll.Comm) error {
				src := make([]int32, count)
				for i := range src {
					src[i] = int32(c.Rank() + i)
				}
				got, dst := src, ubcoll.Of(src)
				if k.direct {
					b, err := ubcoll.Alloc[int32](c, ubcoll.Host, count)
					if err != nil {
						return err
					}
					got, dst = b.Slice(), b.Vec()
				}
				if err := coll.AllReduce(ctx, c, dst, ubcoll.Of(src), ubcoll.Sum); err != nil {
					return err
				}
				if c.Rank() == slow-1 {
					clear(got)
					returned.Store(true)
					return nil
				}
				for i, x := range got {
					if want := int32(0 + 1 + 2 + n*i); x != want {
						return fmt.Errorf("element %d is %d, not %d", i, x, want)
					}
				}
				return nil
			}))
		})
	}
}
