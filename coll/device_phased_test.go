package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDevicePhased: which all-reduces are combined on the devices of a host, and what LastOp says of them.
func TestDevicePhased(t *testing.T) {
	coll.SetPhased(t, 4096, 2048)
	coll.SetStagedPart(t, 16<<10)
	for _, k := range []struct {
		name, hosts string
		typ         dtype.Type
		op          ubcoll.Op
		bytes       int
		phased      bool
	}{
		{"one part", "aabb", dtype.Float32, ubcoll.Sum, 4096, true},
		{"many parts, and what no slice has", "aabb", dtype.Uint8, ubcoll.Max, 100_001, true},
		{"as many parts as there may be", "aabb", dtype.Float32, ubcoll.Sum, 4 << 20, true},
		{"three hosts", "aabbcc", dtype.Float64, ubcoll.Sum, 50_008, true},
		{"ranks in turn", "abab", dtype.Int32, ubcoll.Avg, 50_004, true},
		{"multiplied", "aabb", dtype.Float32, ubcoll.PreMulSum(2), 20_000, true},
		{"average of halves", "aabb", dtype.Float16, ubcoll.Avg, 20_002, true},
		{"a last part without slices", "aabb", dtype.Float32, ubcoll.Sum, 16<<10 + 100, true},
		{"short", "aabb", dtype.Float32, ubcoll.Sum, 4092, false},
		{"a rank on each host", "ab", dtype.Float32, ubcoll.Sum, 20_000, false},
		{"hosts of several sizes", "aab", dtype.Float32, ubcoll.Sum, 20_000, false},
		{"average of halves of three ranks", "aaabbb", dtype.Float16, ubcoll.Avg, 20_002, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			requireAll(t, devicesOnHosts(t, k.hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				src, err1 := ubcoll.Alloc[uint8](c, dev, k.bytes)
				dst, err2 := ubcoll.Alloc[uint8](c, dev, k.bytes)
				if err := errors.Join(err1, err2); err != nil {
					return err
				}
				from, to := src.Vec().As(k.typ), dst.Vec().As(k.typ)
				for range 5 { // the first times peers may not have mapped the memory yet
					if err := coll.AllReduce(ctx, c, to, from, k.op); err != nil {
						return err
					}
				}
				o := c.LastOp()
				s, levels := o.String(), o.Levels
				if !strings.Contains(s, "page-locked host memory") || len(levels) == 0 {
					return fmt.Errorf("%v: %s", levels, s)
				}
				if got := strings.HasPrefix(levels[0].Transport, "GPU kernels"); got != k.phased {
					return fmt.Errorf("%v", levels[0])
				}
				source := "direct in the host, through page-locked host memory, copied by the kernel between hosts"
				if k.phased && k.name != "multiplied" && !strings.Contains(s, source) {
					return fmt.Errorf("%s", s)
				}
				return errors.Join(src.Free(), dst.Free())
			}))
		})
	}
}

// TestDevicePhasedGroups: a group of more kernels than may be queued at once ends, on a stream and in a graph, and LastOp has all of it.
func TestDevicePhasedGroups(t *testing.T) {
	coll.SetPhased(t, 100, 1024)
	coll.SetStagedPart(t, 1024)
	calls := 5
	if !emulated.Active() { // a driver that has queued a thousand kernels takes no more
		calls = 41
	}
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err1 := gputest.Floats(ctx, c, dev, 20_000, 1)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		do := func(v *ubcoll.Comm) error {
			var errs []error
			for i := range calls {
				errs = append(errs, coll.AllReduce(ctx, v, b.Vec(), b.Vec(), []ubcoll.Op{ubcoll.Sum, ubcoll.Avg}[i%2]))
			}
			return errors.Join(errs...)
		}
		if err := errors.Join(ubcoll.Group(ctx, c.On(s), do), s.Sync(ctx)); err != nil {
			return err
		}
		if o := c.LastOp(); len(o.Members) != calls || o.Seq != uint64(calls) {
			return fmt.Errorf("%d members: %v", len(o.Members), o)
		}
		if err := errors.Join(refusedCall(ctx, c.On(s), b, s, 1), refusedCall(ctx, c.On(s), b, s, 4), gputest.All(ctx, c, b, float32(math.Pow(4, float64((calls+1)/2))))); err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c.On(s), do)
		if err != nil {
			return err
		}
		return errors.Join(g.Launch(ctx), g.Launch(ctx), s.Sync(ctx), gputest.All(ctx, c, b, float32(math.Pow(4, float64(3*(calls+1)/2)))), g.Close(), s.Close(), b.Free())
	}))
}

// refusedCall queues a group of 5 calls, of which rank 1 makes one another: all ranks are told which, and leave those behind it out,
// however many kernels theirs have.
func refusedCall(ctx context.Context, v *ubcoll.Comm, b *ubcoll.Buffer[float32], s *ubcoll.Stream, odd int) error {
	err := ubcoll.Group(ctx, v, func(g *ubcoll.Comm) error {
		var errs []error
		for i := range 5 {
			x := b.Vec()
			if i+1 == odd && v.Rank() == 1 {
				x = x.Slice(0, 1)
			}
			errs = append(errs, coll.AllReduce(ctx, g, x, x, ubcoll.Max))
		}
		return errors.Join(errs...)
	})
	err = errors.Join(err, s.Sync(ctx))
	want := fmt.Sprintf("call %d of 5", odd)
	if !errors.Is(err, ubcoll.ErrMismatch) || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("not %s: %w", want, err)
	}
	return v.Err()
}

// TestDevicePhasedRefused: where hosts do not agree no destination is written to, also on those hosts whose ranks agree.
func TestDevicePhasedRefused(t *testing.T) {
	coll.SetPhased(t, 1, 1024)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 5000
		src, err1 := gputest.Floats(ctx, c, dev, n, 1)
		was := float32(7 + c.Rank()) // or nobody would see an all-gather of it
		dst, err2 := gputest.Floats(ctx, c, dev, n, was)
		queued, sync, end, err3 := gputest.View(ctx, c, dev, true)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		for odd := range c.Size() {
			for _, to := range []*ubcoll.Comm{c, queued} {
				op := ubcoll.Sum
				if c.Rank() == odd {
					op = ubcoll.Max
				}
				err := errors.Join(coll.AllReduce(ctx, to, dst.Vec(), src.Vec(), op), sync())
				if err := testkit.WantsOf(c.Rank(), "all_reduce", err, ubcoll.ErrMismatch); err != nil {
					return err
				}
				if err := errors.Join(c.Err(), gputest.All(ctx, c, dst, was)); err != nil {
					return err
				}
			}
		}
		return errors.Join(coll.AllReduce(ctx, c, dst.Vec(), src.Vec(), ubcoll.Sum), gputest.All(ctx, c, dst, 4), end(), src.Free(), dst.Free())
	}))
}

// TestDevicePhasedSame: all ranks get the same bits, whatever the sums of floats are.
func TestDevicePhasedSame(t *testing.T) {
	coll.SetPhased(t, 1, 1024)
	coll.SetStagedPart(t, 8192)
	const n = 10_007
	seed := testkit.Seed(t)
	for _, hosts := range []string{"aabb", "abcabc"} {
		for _, way := range []string{"", "ring", "doubling", "halving"} {
			t.Run(hosts+" "+way, func(t *testing.T) {
				results := make([][]float32, len(hosts))
				requireAll(t, devicesOnHosts(t, hosts, engine.Options{Algorithm: way}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					b, err := ubcoll.Alloc[float32](c, dev, n)
					if err != nil {
						return err
					}
					x := make([]float32, n)
					r := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
					for i := range x {
						x[i] = r.Float32() - 0.5
					}
					err = testkit.InOrder(func() error { return b.CopyFrom(ctx, x) },
						func() error { return coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum) },
						func() error { return b.CopyTo(ctx, x) }, b.Free)
					results[c.Rank()] = x
					return err
				}))
				for r := range results {
					if !slices.Equal(results[r], results[0]) {
						t.Fatalf("rank %d has other sums than rank 0", r)
					}
				}
			})
		}
	}
}
