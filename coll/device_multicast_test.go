//go:build nvls

package coll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/verify"
	"github.com/ubcoll/ubcoll/register"
)

// multicast runs f on n ranks of emulated devices that have a multicast object, by which all operations go that can.
func multicast(t *testing.T, n int, o ubcoll.Options, f func(context.Context, *ubcoll.Comm, ubcoll.Device) error) {
	t.Helper()
	emulated.NVLS(t)
	gputest.Run(t, n, o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		byMulticast(c)
		return f(ctx, c, dev)
	})
}

// byMulticast lets c do small operations by multicast, too.
func byMulticast(c *ubcoll.Comm) {
	(*inside.Comm)(c).View().Team().Tuning().GPU.NVLSFrom = 1
}

// used returns an error unless c's last operation went by multicast, with these buffers in place.
func used(c *ubcoll.Comm, src, dst bool) error {
	o := c.LastOp()
	if o.Algorithm != "nvls" || (o.Src.Used && o.Src.Direct) != src || (o.Dst.Used && o.Dst.Direct) != dst {
		return fmt.Errorf("rank %d: %v, want nvls, source in place: %v, destination: %v", c.Rank(), o, src, dst)
	}
	return nil
}

// TestMulticastDevices runs random operations of all kinds, in place and not, with memory that lies alike on all ranks, or does not.
func TestMulticastDevices(t *testing.T) {
	const most = 300 << 10
	start := testkit.Seed(t)
	ranks := []int{2, 3, 4, 8}
	trials := 40
	if testing.Short() {
		ranks, trials = []int{3}, 20
	}
	for _, n := range ranks {
		for _, w := range []mode{{queued: false}, {queued: true}, {policy: register.Explicit, some: true}, {policy: register.Off}} {
			t.Run(fmt.Sprintf("ranks=%d/%v", n, w), func(t *testing.T) {
				multicast(t, n, ubcoll.Options{Register: w.policy}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					a, err1 := newMemory(c, dev, most)
					b, err2 := newMemory(c, dev, most)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					if w.some && c.Rank()%2 == 0 {
						if _, err := c.RegisterBuffer(b.buf.Vec()); err != nil {
							return err
						}
					}
					view, sync, end, err := gputest.View(ctx, c, dev, w.queued)
					if err != nil {
						return err
					}
					defer end()
					same := rand.New(rand.NewPCG(start, uint64(n)))
					own := rand.New(rand.NewPCG(start, uint64(c.Rank())+100))
					for range trials {
						k := newTrial(same, n, most)
						if k.data.Type != dtype.Bool && same.IntN(3) == 0 {
							k.data.Type, k.kind = dtype.Float16, "all_reduce"
						}
						if alike := same.IntN(2) == 0; !alike {
							k.shift = own.IntN(8)
						}
						if err := k.run(ctx, view, a, b, sync); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// TestMulticastOperations does each operation, type and reduction that goes by multicast, in place of the first use, and
// says so.
func TestMulticastOperations(t *testing.T) {
	const n, count = 4, 5000
	ops := []ubcoll.Op{ubcoll.Sum, ubcoll.Min, ubcoll.Max, ubcoll.Avg}
	goes := map[dtype.Type]string{dtype.Float32: "sum avg", dtype.Float16: "sum min max", dtype.BFloat16: "sum min max",
		dtype.Int32: "sum min max", dtype.Uint32: "sum min max", dtype.Int64: "sum min max", dtype.Uint64: "sum min max"}
	multicast(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err1 := newMemory(c, dev, 8*n*count)
		b, err2 := newMemory(c, dev, 8*n*count)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		none := func() error { return nil }
		for _, typ := range dtype.All() {
			for _, op := range ops {
				if typ == dtype.Bool && (op == ubcoll.Sum || op == ubcoll.Avg) {
					continue
				}
				for _, kind := range []string{"all_reduce", "reduce_scatter"} {
					k := trial{data: verify.Data{Type: typ, Ranks: n, Seed: 1}, op: op, count: count / 8 * 8, kind: kind}
					for _, o := range deviceOps {
						if o.op == op {
							k.data.Op, k.data.Average = o.cpu, o.average
						}
					}
					if err := k.run(ctx, c, a, b, none); err != nil {
						return err
					}
					want := strings.Contains(goes[typ], strings.ToLower(fmt.Sprint(op)))
					if got := c.LastOp().Algorithm == "nvls"; got != want {
						return fmt.Errorf("%v: %v, want multicast: %v", k, c.LastOp(), want)
					}
					if want {
						if err := used(c, true, kind == "all_reduce"); err != nil {
							return err
						}
					}
				}
			}
		}
		for _, kind := range []string{"all_gather", "broadcast"} {
			k := trial{data: verify.Data{Type: dtype.Uint8, Ranks: n, Seed: 2}, op: ubcoll.Sum, count: count, root: 1, kind: kind}
			root := kind == "broadcast" && c.Rank() == k.root
			if err := errors.Join(k.run(ctx, c, a, b, none), used(c, root, !root)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestMulticastBits compares the bits of all ranks' results: sums of floats depend on the order.
func TestMulticastBits(t *testing.T) {
	const n, count = 4, 30000
	var bits [n][]uint32
	multicast(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		x, err := ubcoll.Alloc[float32](c, dev, count)
		if err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(7, uint64(c.Rank())))
		host := make([]float32, count)
		for i := range host {
			host[i] = float32(r.NormFloat64())
		}
		if err := x.CopyFrom(ctx, host); err != nil {
			return err
		}
		if err := errors.Join(coll.AllReduce(ctx, c, x.Vec(), x.Vec(), ubcoll.Sum), used(c, true, true), x.CopyTo(ctx, host)); err != nil {
			return err
		}
		bits[c.Rank()] = append([]uint32(nil), unsafe.Slice((*uint32)(unsafe.Pointer(&host[0])), count)...)
		return nil
	})
	for r := range bits {
		require.Equal(t, bits[0], bits[r])
	}
}

// TestMulticastAsymmetric: whichever ranks' source or destination cannot be bound, all results are right, and those ranks'
// Explain says why.
func TestMulticastAsymmetric(t *testing.T) {
	const n, count = 3, 40000
	emulated.NVLS(t)
	for mask := range 1 << (2 * n) {
		if testing.Short() && mask%7 != 3 {
			continue
		}
		t.Run(fmt.Sprintf("%06b", mask), func(t *testing.T) {
			multicast(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				var all [2]*ubcoll.Buffer[byte]
				var v [2]ubcoll.Vec
				var plain [2]bool
				for i := range v {
					if plain[i] = mask>>(2*c.Rank()+i)&1 == 1; plain[i] {
						ctx, err := cuda.Primary(dev)
						if err != nil {
							return err
						}
						defer ctx.Close()
						at, err := ctx.Alloc(4 * count)
						if err != nil {
							return err
						}
						defer ctx.Free(at)
						b, err := ubcoll.Adopt(c, dev, *(*unsafe.Pointer)(unsafe.Pointer(&at)), 4*count)
						if err != nil {
							return err
						}
						defer b.Free()
						all[i] = b
						continue
					}
					b, err := ubcoll.Alloc[byte](c, dev, 4*count)
					if err != nil {
						return err
					}
					all[i] = b
				}
				for i, b := range all {
					v[i] = b.Vec().As(dtype.Float32)
				}
				host := make([]float32, count)
				for k := range 3 {
					for i := range host {
						host[i] = float32(c.Rank() + i%5 + k)
					}
					if err := all[0].CopyFrom(ctx, bytesOf(host)); err != nil {
						return err
					}
					if err := errors.Join(coll.AllReduce(ctx, c, v[1], v[0], ubcoll.Sum), used(c, c.LastOp().Src.Direct, c.LastOp().Dst.Direct)); err != nil {
						return err
					}
					if err := all[1].CopyTo(ctx, bytesOf(host)); err != nil {
						return err
					}
					for i, x := range host {
						if x != float32(3+3*(i%5)+3*k) {
							return fmt.Errorf("rank %d: element %d is %v", c.Rank(), i, x)
						}
					}
				}
				for i := range v {
					if text := c.Explain(v[i]); plain[i] != strings.Contains(text, "NVLS cannot use it: only memory of Alloc") {
						return fmt.Errorf("rank %d, buffer %d, bound: %v: %s", c.Rank(), i, !plain[i], text)
					}
				}
				return nil
			})
		})
	}
}

func bytesOf(x []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x)) }

var _ = []any{graph.Capture, slog.LevelWarn, os.Getenv, dtype.Int8}
