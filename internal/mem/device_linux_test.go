package mem

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
)

func deviceHeap(t *testing.T, ctx *cuda.Context, goHeap bool) *Heap {
	s := emulated.Stream(t, ctx)
	h := newHeap(t, goHeap)
	h.UseDevice(ctx, s)
	return h
}

func contents(t *testing.T, ctx *cuda.Context, a *Allocation, n int) string {
	t.Helper()
	s, err := ctx.NewStream()
	require.NoError(t, err)
	defer s.Close()
	b := make([]byte, n)
	require.NoError(t, s.Download(b, cuda.Addr(a.Base())))
	return string(b)
}

func TestDeviceMemory(t *testing.T) {
	ctx := emulated.Primary(t, 1)
	modes(t, func(t *testing.T, goHeap bool) {
		before := emulated.Used(t, ctx)
		h := deviceHeap(t, ctx, goHeap)
		quiet := 0
		h.OnQuiesce(func() { quiet++ })
		grain, err := ctx.Granularity()
		require.NoError(t, err)
		a, err := h.AllocDevice(grain + 1)
		require.NoError(t, err)
		require.Equal(t, hw.CUDA(1), a.Dev)
		require.Equal(t, Device, a.Origin)
		require.Zero(t, a.Base()%uintptr(grain))
		require.Equal(t, strings.Repeat("\x00", 2*grain), contents(t, ctx, a, 2*grain), "whole grains are the caller's")
		require.Same(t, a, h.Lookup(a.Base()+uintptr(grain), 1), "device memory is found by its address")
		require.Nil(t, h.Lookup(a.Base()+uintptr(grain), 2))
		require.True(t, h.Directory().Live(a.At))
		require.Equal(t, int64(grain+1), h.Stats().DeviceBytes)
		require.Zero(t, h.Stats().LiveBytes)
		m, err := a.Inspect()
		require.NoError(t, err)
		require.Equal(t, cuda.Addr(a.Base()), m.Base)
		require.Equal(t, 2*grain, m.Size)
		require.True(t, m.PosixFD)

		s, err := ctx.NewStream()
		require.NoError(t, err)
		require.NoError(t, s.Fill(cuda.Addr(a.Base()), 'x', 2*grain))
		require.NoError(t, s.Sync())
		require.NoError(t, s.Close())
		require.Zero(t, quiet)
		require.NoError(t, h.Retire(a))
		require.Equal(t, 1, quiet, "what is queued ends first")
		require.Nil(t, h.Lookup(a.Base(), 1))
		require.False(t, h.Directory().Live(a.At))
		_, err = a.Inspect()
		require.ErrorIs(t, err, fault.ErrStale)
		require.ErrorIs(t, h.Retire(a), fault.ErrClosed)

		b, err := h.AllocDevice(2 * grain)
		require.NoError(t, err)
		require.Equal(t, a.At.Slot, b.At.Slot)
		require.NotEqual(t, a.At.Generation, b.At.Generation)
		require.Equal(t, strings.Repeat("\x00", 2*grain), contents(t, ctx, b, 2*grain))
		require.NoError(t, h.Close())
		require.ErrorIs(t, h.Retire(b), fault.ErrClosed, "Close has freed it")
		require.Equal(t, before, emulated.Used(t, ctx))
		_, err = h.AllocDevice(1)
		require.ErrorIs(t, err, fault.ErrClosed)
	})
}

// A unit that is coarser than the driver's is that of sizes and addresses, of whole allocations alone.
func TestRoundDevice(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	h := deviceHeap(t, ctx, false)
	const mib = 1 << 20
	for _, bad := range []int{0, -1, 3 * mib} {
		require.ErrorIs(t, h.RoundDevice(bad), fault.ErrArgument)
	}
	for _, unit := range []int{4096, 2 * mib, 16 * mib} {
		require.NoError(t, h.RoundDevice(unit))
		for _, n := range []int{1, 3 * mib, 17 * mib} {
			grain := max(unit, 2*mib)
			a, err := h.AllocDevice(n)
			require.NoError(t, err)
			m, err := a.Inspect()
			require.NoError(t, err)
			require.Zero(t, a.Base()%uintptr(grain), "%d bytes in units of %d", n, unit)
			require.Equal(t, (n+grain-1)/grain*grain, m.Size)
		}
	}
	before := emulated.Used(t, ctx)
	_, err := h.AllocDevicePart(1)
	require.NoError(t, err)
	if emulated.Active() {
		require.Equal(t, 2*mib, emulated.Used(t, ctx)-before)
	}
	require.NoError(t, h.Close())
}

func TestDeviceMemoryRefused(t *testing.T) {
	h := newHeap(t, false)
	_, err := h.AllocDevice(1)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	_, err = h.AdoptDevice(1, 1, nil)
	require.ErrorIs(t, err, fault.ErrNotSupported)
	require.NoError(t, h.Close())

	ctx := emulated.Primary(t, 0)
	h = deviceHeap(t, ctx, false)
	for n, want := range map[int]error{0: fault.ErrArgument, -1: fault.ErrArgument, 1<<46 + 1: fault.ErrLimit,
		1 << 46: fault.ErrLimit} {
		_, err := h.AllocDevice(n)
		require.ErrorIs(t, err, want, "%d bytes", n)
	}
	a := alloc(t, h, 1)
	_, err = a.Inspect()
	require.ErrorIs(t, err, fault.ErrArgument)
	b, err := h.AllocDevice(1)
	require.NoError(t, err)
	require.Equal(t, a.At.Slot+1, b.At.Slot, "failures must not use up slots")
}

// failing makes each of the driver's calls fail in turn, and checks that f leaks nothing. It repeats that more often
// than the threads of the Go runtime and of the driver add mappings.
func failing(t *testing.T, ctx *cuda.Context, calls []string, f func() error) {
	const often, elsewhere = 50, 40
	require.NoError(t, f(), "without failures")
	for _, call := range calls {
		t.Run(call, func(t *testing.T) {
			memory, foot := emulated.Used(t, ctx), measure(t)
			for range often {
				t.Setenv("UBCOLL_EMULATE_FAIL", call+":1=2") // OUT_OF_MEMORY
				err := f()
				t.Setenv("UBCOLL_EMULATE_FAIL", "")
				require.ErrorIs(t, err, fault.ErrLimit)
				require.ErrorContains(t, err, call)
				require.NoError(t, f(), "afterwards")
			}
			after := measure(t)
			require.Equal(t, memory, emulated.Used(t, ctx))
			require.LessOrEqual(t, after.mappings, foot.mappings+elsewhere)
			require.Equal(t, [2]int{foot.descriptors, foot.shared}, [2]int{after.descriptors, after.shared})
		})
	}
}

func TestOutOfDeviceMemory(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	emulated.Only(t)
	calls := []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuMemsetD8Async"}
	h := deviceHeap(t, ctx, false)
	failing(t, ctx, calls, func() error {
		a, err := h.AllocDevice(3 << 20)
		if err != nil {
			return err
		}
		return h.Retire(a)
	})
}

func TestAdoptDevice(t *testing.T) {
	ctx, other := emulated.Primary(t, 0), emulated.Primary(t, 1)
	h := deviceHeap(t, ctx, false)
	const size = 4 << 20
	mine, err := ctx.Alloc(size)
	require.NoError(t, err)
	theirs, err := other.Alloc(size)
	require.NoError(t, err)
	page := alloc(t, h, size)
	own, err := h.AllocDevice(1)
	require.NoError(t, err)
	freed, err := ctx.Alloc(64 << 20)
	require.NoError(t, err)
	require.NoError(t, ctx.Free(freed))
	locked := goPages(4096)
	_, err = ctx.HostRegister(page.Ptr, size)
	require.NoError(t, err)

	for _, c := range []struct {
		name string
		at   cuda.Addr
		n    int
		err  error
		says string
	}{
		{"nothing", 0, 1, fault.ErrArgument, ""},
		{"no bytes", mine, 0, fault.ErrArgument, ""},
		{"the end of all addresses", ^cuda.Addr(0), 2, fault.ErrArgument, ""},
		{"another device's", theirs, 1, fault.ErrArgument, "it is memory of cuda:1, and this rank uses cuda:0"},
		{"the host's", cuda.Addr(locked), 1, fault.ErrArgument, "it is the host's, or was freed"},
		{"the host's, page-locked", cuda.Addr(page.Ptr), 1, fault.ErrArgument, "not memory of cuda:0"},
		{"freed", freed, 1, fault.ErrArgument, "was freed"},
		{"too long", mine + 1, size, fault.ErrArgument, "not all in one allocation"},
		{"the heap's own", cuda.Addr(own.Base()) + 5, 1, fault.ErrInUse, "Free that buffer first"},
		{"a part", mine + 4096, size - 4096, nil, ""},
		{"overlapping", mine + 4095, 2, fault.ErrInUse, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := h.AdoptDevice(c.at, c.n, nil)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, DeviceAdopted, a.Origin)
			require.Equal(t, hw.CUDA(0), a.Dev)
			require.Same(t, a, h.Lookup(uintptr(c.at), c.n))
			m, err := a.Inspect()
			require.NoError(t, err)
			require.Equal(t, mine, m.Base)
			require.Equal(t, size, m.Size)
		})
	}
	_, err = h.Adopt(pointer(mine), 1, nil)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, "it is memory of cuda:0")
	require.NoError(t, ctx.HostUnregister(page.Ptr))
	require.NoError(t, h.Close())
	_, err = cuda.Inspect(mine)
	require.NoError(t, err)
	require.NoError(t, ctx.Free(mine), "its owner frees it")
	require.NoError(t, other.Free(theirs))
}

// Memory can be adopted exactly if it can be exported. The table has all answers that the driver may give.
func TestAdoptable(t *testing.T) {
	good := cuda.Memory{Type: cuda.OnDevice, Device: hw.CUDA(0), Base: 1000, Size: 100, LegacyIPC: true}
	for _, c := range []struct {
		name   string
		change func(m *cuda.Memory)
		at     cuda.Addr
		n      int
		want   error
		says   string
	}{
		{"all of it", func(*cuda.Memory) {}, 1000, 100, nil, ""},
		{"by descriptor", func(m *cuda.Memory) { m.LegacyIPC, m.PosixFD = false, true }, 1000, 100, nil, ""},
		{"managed", func(m *cuda.Memory) { m.Type = cuda.Managed }, 1000, 1, fault.ErrNotSupported, "cudaMalloc"},
		{"a pool", func(m *cuda.Memory) { m.LegacyIPC, m.Pool = false, true }, 1000, 1, fault.ErrNotSupported, "memory pool"},
		{"neither", func(m *cuda.Memory) { m.LegacyIPC = false }, 1000, 1, fault.ErrNotSupported, "cudaMalloc"},
		{"before it", func(*cuda.Memory) {}, 999, 1, fault.ErrArgument, "one allocation"},
		{"behind it", func(*cuda.Memory) {}, 1100, 1, fault.ErrArgument, "one allocation"},
		{"far behind it", func(*cuda.Memory) {}, ^cuda.Addr(0) - 5, 1, fault.ErrArgument, "one allocation"},
		{"over its end", func(*cuda.Memory) {}, 1050, 51, fault.ErrArgument, "one allocation"},
		{"its last byte", func(*cuda.Memory) {}, 1099, 1, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := good
			c.change(&m)
			err := adoptable(m, c.at, c.n, hw.CUDA(0))
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestFreedBehindOurBack(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	h := deviceHeap(t, ctx, false)
	p, err := ctx.Alloc(4 << 20)
	require.NoError(t, err)
	a, err := h.AdoptDevice(p, 4<<20, nil)
	require.NoError(t, err)
	require.NoError(t, ctx.Free(p))
	_, err = a.Inspect()
	require.ErrorIs(t, err, fault.ErrStale)
	require.ErrorContains(t, err, "freed by its owner")
	q, err := ctx.Alloc(4 << 20)
	require.NoError(t, err)
	if q != p {
		t.Logf("the driver did not use %#x again", uintptr(p))
	} else {
		_, err = a.Inspect()
		require.ErrorIs(t, err, fault.ErrStale)
		require.ErrorContains(t, err, "other memory has its address")
		_, err = h.AdoptDevice(q, 4<<20, nil)
		require.ErrorIs(t, err, fault.ErrInUse)
	}
	require.NoError(t, h.Retire(a))
	b, err := h.AdoptDevice(q, 4<<20, nil)
	require.NoError(t, err)
	_, err = b.Inspect()
	require.NoError(t, err)
	require.NoError(t, h.Retire(b))
	require.NoError(t, ctx.Free(q))
}

func TestDeviceMemoryFromManyGoroutines(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	before := emulated.Used(t, ctx)
	h := deviceHeap(t, ctx, false)
	errs := make(chan error)
	const workers = 4
	for w := range workers {
		go func() {
			errs <- func() error {
				for i := range 20 {
					a, err := h.AllocDevice(1 << 20)
					if err != nil {
						return err
					}
					if got := h.Lookup(a.Base()+uintptr(i), 1); got != a {
						return fmt.Errorf("worker %d found %v", w, got)
					}
					if i%2 == 0 { // the others are left to Close
						if err := h.Retire(a); err != nil {
							return err
						}
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		require.NoError(t, <-errs)
	}
	require.NoError(t, h.Close())
	require.Equal(t, before, emulated.Used(t, ctx))
}
