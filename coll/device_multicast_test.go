//go:build nvls

package coll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
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

// No rank is so late here that another goes on without it.
func init() { gpu.Patience = 10 * time.Second }

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
	modes := []mode{{queued: false}, {queued: true}, {policy: register.Explicit, some: true}, {policy: register.Off}}
	if testing.Short() || testkit.Daily() {
		ranks, modes, trials = []int{3}, testkit.Sample(2, modes), 20
	}
	for _, n := range ranks {
		for _, w := range modes {
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
							k.data.Type, k.kind, k.count = dtype.Float16, "all_reduce", min(k.count, most/4)
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
		if (testing.Short() || testkit.Daily()) && mask%5 != 3 {
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
					if err := errors.Join(coll.AllReduce(ctx, c, v[1], v[0], ubcoll.Sum),
						used(c, !plain[0] && mask&1 == 0, !plain[1] && mask&2 == 0)); err != nil { // where rank 0's are bound, too
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

// TestMulticastSetup makes each call of the driver fail in turn while communicators are made, bind and close. Whatever
// fails, all ranks have multicast or none has, results are right, and nothing is left of objects, mappings and references.
func TestMulticastSetup(t *testing.T) {
	emulated.NVLS(t)
	for _, n := range []int{2, 3, 8} {
		if n > 2 && (testing.Short() || testkit.Daily()) {
			continue
		}
		for _, call := range []string{"cuMulticastGetGranularity", "cuMulticastCreate", "cuMulticastAddDevice", "cuMulticastBindAddr",
			"cuMulticastUnbind", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemRetainAllocationHandle",
			"cuMemGetInfo_v2"} {
			t.Run(fmt.Sprintf("%d ranks/%s", n, call), func(t *testing.T) {
				if n == 8 && call != "cuMulticastBindAddr" && call != "cuMulticastAddDevice" {
					t.Skip("fewer ranks do the same")
				}
				multicastFailures(t, n, call)
			})
		}
	}
}

func multicastFailures(t *testing.T, n int, call string) {
	before := map[string]int{}
	all := make([]int, 6*n)
	for k := range all {
		all[k] = k + 1
	}
	for _, k := range append([]int{0}, testkit.Sample(4, all)...) {
		t.Setenv("UBCOLL_EMULATE_FAIL", "")
		have := make([]bool, n)
		fail := fmt.Sprintf("%s:%d=801", call, k)
		if k > 0 {
			t.Setenv("UBCOLL_EMULATE_FAIL", fail)
		}
		t.Setenv("UBCOLL_CUDA", "auto")
		logger, _ := testkit.Logs(slog.LevelError)
		err := ubcoll.Local(t.Context(), n, ubcoll.Options{Timeout: testkit.Limit, Logger: logger}, func(ctx context.Context, c *ubcoll.Comm) error {
			dev, err := c.GPU()
			if err != nil {
				return nil // TestDeviceSetup's
			}
			byMulticast(c)
			host := make([]float32, 5000)
			for i := range host {
				host[i] = float32(c.Rank())
			}
			a, err1 := ubcoll.Alloc[float32](c, dev, len(host))
			b, err2 := ubcoll.Alloc[float32](c, dev, len(host))
			if err1 != nil || err2 != nil {
				return testkit.ErrOf(0, coll.Barrier(ctx, c)) // the others' end
			}
			for range 2 {
				if err := errors.Join(a.CopyFrom(ctx, host), coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum),
					gputest.All(ctx, c, b, float32(n*(n-1)/2))); err != nil {
					return err
				}
			}
			have[c.Rank()] = c.LastOp().Algorithm == "nvls"
			err = errors.Join(a.Free(), b.Free(), coll.Barrier(ctx, c))
			if errors.Is(err, ubcoll.ErrNotSupported) { // the failure is the one of a call that gives back
				return nil
			}
			return err
		})
		t.Setenv("UBCOLL_EMULATE_FAIL", "")
		now := emulated.CountOf(t)
		if k == 0 {
			require.NoError(t, err)
			require.True(t, have[0])
			require.Zero(t, now["multicast"])
			require.Zero(t, now["bound"])
			before = now
			continue
		}
		for r := range have {
			require.Equal(t, have[0], have[r], "%s: %v", fail, err)
		}
		require.Equal(t, before, now, "%s: %v", fail, err)
	}
}

// TestMulticastOrder: memory leaves NVLS before IPC, also if NVLS fails, and both tell.
func TestMulticastOrder(t *testing.T) {
	emulated.NVLS(t)
	for _, fail := range []string{"", "cuMulticastUnbind:1=801", "cuMemRelease:1=801"} {
		t.Run(fail, func(t *testing.T) {
			before := emulated.CountOf(t)
			t.Cleanup(func() { require.Equal(t, before, emulated.CountOf(t)) })
			multicast(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				a, err := gputest.Floats(ctx, c, dev, 5000, 1)
				if err != nil {
					return err
				}
				r, err := c.RegisterBuffer(a.Vec())
				if err != nil {
					return err
				}
				if err := errors.Join(coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum), used(c, true, true)); err != nil {
					return err
				}
				text := c.Explain(a.Vec())
				if !strings.Contains(text, "NVLS complete: bound at 0x") || !strings.Contains(text, "IPC complete") {
					return errors.New(text)
				}
				s := c.Stats().Cache
				if s.NVLS.Complete != 1 || s.IPC.Complete != 1 {
					return fmt.Errorf("%+v", s)
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				if c.Rank() == 0 {
					os.Setenv("UBCOLL_EMULATE_FAIL", fail)
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				if c.Rank() == 1 {
					return coll.Barrier(ctx, c)
				}
				err = r.Close()
				os.Setenv("UBCOLL_EMULATE_FAIL", "")
				if (err != nil) != (fail != "") || err != nil && !strings.Contains(err.Error(), "NVLS could not deregister") {
					return fmt.Errorf("with %q: %w", fail, err)
				}
				s = c.Stats().Cache
				if s.NVLS.Complete != 0 || s.IPC.Complete != 0 || (s.NVLS.Failures == 1) != (fail != "") {
					return fmt.Errorf("%+v", s)
				}
				return errors.Join(coll.Barrier(ctx, c))
			})
		})
	}
}

// TestMulticastGraphs replays captured operations that nobody has run before, and others beside them, on a communicator
// and on its duplicate.
func TestMulticastGraphs(t *testing.T) {
	const n, count = 3, 5000
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprint("queued=", queued), func(t *testing.T) {
			multicast(t, n, ubcoll.Options{}, func(ctx context.Context, parent *ubcoll.Comm, dev ubcoll.Device) error {
				c, err := parent.Dup(ctx)
				if err != nil {
					return err
				}
				defer c.Close()
				byMulticast(c)
				a, err1 := gputest.Floats(ctx, c, dev, count, 1)
				b, err2 := gputest.Floats(ctx, c, dev, count, 0)
				if err := errors.Join(err1, err2); err != nil {
					return err
				}
				view, sync, end, err := gputest.View(ctx, c, dev, queued)
				if err != nil {
					return err
				}
				defer end()
				g, err := graph.Capture(ctx, view, func(c *ubcoll.Comm) error {
					return errors.Join(coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum), coll.AllReduce(ctx, c, a.Vec(), b.Vec(), ubcoll.Avg))
				})
				if err != nil {
					return err
				}
				want := float32(1)
				for range 5 {
					if err := errors.Join(g.Launch(ctx), sync(), coll.AllReduce(ctx, parent, a.Vec(), a.Vec(), ubcoll.Sum), used(parent, true, true)); err != nil {
						return err
					}
					want *= n * n
				}
				return errors.Join(used(c, true, true), gputest.All(ctx, c, a, want), g.Close(), a.Free(), b.Free())
			})
		})
	}
}

// TestMulticastAgain frees and makes buffers, alike and not, on all ranks and on some.
func TestMulticastAgain(t *testing.T) {
	const n, count = 3, 5000
	multicast(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		var all [4]*ubcoll.Buffer[float32]
		direct := 0
		for k := range 60 {
			i := k / 3 % len(all)
			if k%20 >= 10 { // this rank uses others than its peers
				i = (i + c.Rank()) % len(all)
			}
			if all[i] == nil {
				var err error
				if all[i], err = ubcoll.Alloc[float32](c, dev, count); err != nil {
					return err
				}
			}
			host := make([]float32, count)
			for j := range host {
				host[j] = float32(c.Rank() + j%7 + k)
			}
			x := all[i]
			if err := errors.Join(x.CopyFrom(ctx, host), coll.AllReduce(ctx, c, x.Vec(), x.Vec(), ubcoll.Sum), x.CopyTo(ctx, host)); err != nil {
				return err
			}
			for j, y := range host {
				if y != float32(3+3*(j%7)+3*k) {
					return fmt.Errorf("rank %d, operation %d: element %d is %v", c.Rank(), k, j, y)
				}
			}
			if c.LastOp().Src.Direct {
				direct++
			}
			if k%7 == 6 && (k%2 == 0 || c.Rank() == 1) {
				if err := x.Free(); err != nil {
					return err
				}
				all[i] = nil
			}
		}
		if direct < 20 {
			return fmt.Errorf("rank %d: in place %d times of 60", c.Rank(), direct)
		}
		return nil
	})
}

// TestMulticastCost counts what 64 MiB cost a rank: one binding, and a reference that keeps the memory; a hit costs nothing
// more.
func TestMulticastCost(t *testing.T) {
	const n = 2
	multicast(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		var counts [4]map[string]int
		count := func(i int) error {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 {
				mapped := func() bool { // peers map the memory in the background
					counts[i] = emulated.CountOf(t)
					return i != 1 || counts[i]["mapped"] == counts[0]["mapped"]+n && counts[i]["handles"] == counts[0]["handles"]+n
				}
				if !testkit.Until(mapped) {
					return fmt.Errorf("not all have mapped the memory: %v, before: %v", counts[i], counts[0])
				}
			}
			return coll.Barrier(ctx, c)
		}
		a, err := ubcoll.Alloc[float32](c, dev, 16<<20)
		if err != nil {
			return err
		}
		if err := count(0); err != nil {
			return err
		}
		r, err := c.RegisterBuffer(a.Vec())
		if err != nil {
			return err
		}
		part := a.Vec().Slice(5000, 10000)
		for i := range 2 {
			for range 1 + 9*i {
				if err := errors.Join(coll.AllReduce(ctx, c, part, part, ubcoll.Sum), used(c, true, true)); err != nil {
					return err
				}
			}
			if err := count(1 + i); err != nil {
				return err
			}
		}
		if err := errors.Join(r.Close(), count(3)); err != nil {
			return err
		}
		if c.Rank() != 0 {
			return nil
		}
		first := counts[1]
		if first["bound"] != counts[0]["bound"]+n || first["multicast"] != counts[0]["multicast"] {
			return fmt.Errorf("after the first use: %v, before: %v", first, counts[0])
		}
		if !maps.Equal(first, counts[2]) {
			return fmt.Errorf("after more uses: %v, before: %v", counts[2], first)
		}
		if counts[3]["bound"] != counts[0]["bound"] {
			return fmt.Errorf("in the end: %v, at first: %v", counts[3], counts[0])
		}
		return nil
	})
}

// TestMulticastCoarse has granularities that the sizes of nothing are multiples of.
func TestMulticastCoarse(t *testing.T) {
	t.Setenv("UBCOLL_EMULATE_MULTICAST_GRANULARITY", fmt.Sprint(8<<20))
	multicast(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		if own := c.Stats().Memory.OwnBytes; own < 26<<20 { // 10 MiB, and 12 in whole units of 8
			return fmt.Errorf("rank %d: %d bytes of the library's own", c.Rank(), own)
		}
		half, err := c.Split(ctx, min(c.Rank(), 1), 0)
		if err != nil {
			return err
		}
		byMulticast(half)
		a, err1 := gputest.Floats(ctx, c, dev, 5000, 1)
		b, err2 := gputest.Floats(ctx, c, dev, 5000, 1)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for k := range 3 {
			x := []*ubcoll.Buffer[float32]{a, b}[k%2]
			if err := errors.Join(coll.AllReduce(ctx, c, x.Vec(), x.Vec(), ubcoll.Sum), used(c, true, true),
				coll.AllReduce(ctx, half, x.Vec(), x.Vec(), ubcoll.Avg)); err != nil {
				return err
			}
			if half.Size() == 2 {
				if err := used(half, true, true); err != nil {
					return err
				}
			}
		}
		return errors.Join(gputest.All(ctx, c, a, 9), gputest.All(ctx, c, b, 3), half.Close())
	})
}

// TestMulticastRude ends communicators, frees buffers and aborts while operations by multicast are queued. Nothing hangs,
// and nothing is left.
func TestMulticastRude(t *testing.T) {
	emulated.NVLS(t)
	seed := testkit.Seed(t)
	for _, how := range []string{"close", "free", "abort", "close the stream"} {
		t.Run(how, func(t *testing.T) {
			before := emulated.CountOf(t)
			t.Setenv("UBCOLL_CUDA", "auto")
			const n = 3
			times := 4
			if testing.Short() || how[0] == 'c' { // to wait for what is queued takes three seconds
				times = 1
			}
			for k := range times {
				err := ubcoll.Local(t.Context(), n, ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
					dev, err := c.GPU()
					if err != nil {
						return err
					}
					d, err := c.Dup(ctx)
					if err != nil {
						return err
					}
					byMulticast(d)
					var all [3]*ubcoll.Buffer[float32]
					for i := range all {
						if all[i], err = gputest.Floats(ctx, c, dev, 5000, 1); err != nil {
							return err
						}
					}
					s, err := ubcoll.NewStream(dev)
					if err != nil {
						return err
					}
					one := rand.New(rand.NewPCG(seed, uint64(k))).IntN(n) == c.Rank()
					for i := range 12 {
						x := all[i%len(all)]
						if err = coll.AllReduce(ctx, d.On(s), x.Vec(), x.Vec(), ubcoll.Avg); err != nil {
							break
						}
						if i != 7 || !one {
							continue
						}
						switch how {
						case "close":
							err = d.Close()
						case "free":
							err = errors.Join(all[0].Free(), all[1].Free(), all[2].Free())
						case "abort":
							d.Abort(errors.New("of this test"))
						case "close the stream":
							err = s.Close()
						}
						if err != nil {
							break
						}
					}
					late := errors.Join(err, s.Sync(ctx), s.Close(), d.Close())
					for _, x := range all {
						late = errors.Join(late, x.Free())
					}
					t.Log(c.Rank(), late)
					return nil
				})
				t.Log(err)
				require.Equal(t, before, emulated.CountOf(t))
			}
		})
	}
}

func bytesOf(x []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x)) }
