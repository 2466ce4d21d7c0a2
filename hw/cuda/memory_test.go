//go:build linux

package cuda_test

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// mapping is memory of n bytes off the Go heap.
func mapping(t testing.TB, n int) unsafe.Pointer {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return unsafe.Pointer(&b[0])
}

// vmm maps m at an address that c's device can reach.
func vmm(t testing.TB, c *cuda.Context, m cuda.Allocation, n int) cuda.Addr {
	p, err := c.Reserve(n)
	require.NoError(t, err)
	require.NoError(t, c.Map(p, n, m))
	require.NoError(t, c.Access(p, n, c.Device()))
	t.Cleanup(func() {
		require.NoError(t, c.Unmap(p, n))
		require.NoError(t, c.Unreserve(p, n))
	})
	return p
}

func create(t testing.TB, c *cuda.Context) (cuda.Allocation, int) {
	n, err := c.Granularity()
	require.NoError(t, err)
	m, err := c.Create(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Release(m)) })
	return m, n
}

func TestInspect(t *testing.T) {
	c := gpu(t)
	inspect := func(p cuda.Addr) cuda.Memory {
		m, err := cuda.Inspect(p)
		require.NoError(t, err)
		t.Logf("%+v", m)
		return m
	}
	t.Run("device", func(t *testing.T) {
		p := alloc(t, c, 3<<20)
		small, next := alloc(t, c, 1000), alloc(t, c, 1000) // in the same mapping of the driver
		require.Equal(t, [2]int{1000, 1000}, [2]int{inspect(small).Size, inspect(next + 999).Size})
		require.Equal(t, [2]cuda.Addr{small, next}, [2]cuda.Addr{inspect(small + 999).Base, inspect(next).Base})
		require.NotEqual(t, inspect(small).ID, inspect(next).ID)
		m := inspect(p + 1<<20 + 5)
		require.Equal(t, cuda.Memory{Type: cuda.OnDevice, Device: c.Device(), Base: p, Size: 3 << 20, ID: m.ID,
			LegacyIPC: true, DirectRDMA: m.DirectRDMA}, m)
		require.NotZero(t, m.ID)
	})
	t.Run("an address again", func(t *testing.T) {
		ids := map[uint64]bool{}
		for range 10 {
			p, err := c.Alloc(4 << 20)
			require.NoError(t, err)
			m := inspect(p)
			require.False(t, ids[m.ID], "twice buffer %d", m.ID)
			ids[m.ID] = true
			require.NoError(t, c.Free(p))
			require.Equal(t, cuda.Memory{}, inspect(p))
		}
	})
	t.Run("pageable", func(t *testing.T) {
		require.Equal(t, cuda.Memory{}, inspect(cuda.Addr(uintptr(mapping(t, 4096)))))
	})
	t.Run("page-locked", func(t *testing.T) {
		p := mapping(t, 1<<20)
		d, err := c.HostRegister(p, 1<<20)
		require.NoError(t, err)
		m := inspect(d)
		require.Equal(t, cuda.HostSide, m.Type)
		require.False(t, m.LegacyIPC || m.PosixFD)
		require.NoError(t, c.HostUnregister(p))
		require.Equal(t, cuda.Unknown, inspect(d).Type)
	})
	t.Run("mapped", func(t *testing.T) {
		a, n := create(t, c)
		b, _ := create(t, c)
		p, err := c.Reserve(2 * n)
		require.NoError(t, err)
		ids := map[uint64]bool{}
		for i, m := range []cuda.Allocation{a, b} {
			at := p + cuda.Addr(i*n)
			require.NoError(t, c.Map(at, n, m))
			require.NoError(t, c.Access(at, n, c.Device()))
			x := inspect(at + 1)
			ids[x.ID] = true
			require.Equal(t, cuda.OnDevice, x.Type)
			require.Equal(t, at, x.Base, "the mapping, not the range that was reserved")
			require.Equal(t, n, x.Size)
			require.True(t, x.PosixFD)
			require.False(t, x.LegacyIPC)
		}
		for range 3 { // mapped several times at one address
			require.NoError(t, c.Unmap(p, n))
			require.NoError(t, c.Map(p, n, a))
			require.NoError(t, c.Access(p, n, c.Device()))
			x := inspect(p)
			require.False(t, ids[x.ID], "twice buffer %d", x.ID)
			ids[x.ID] = true
		}
		require.NoError(t, c.Unmap(p, n))
		require.NoError(t, c.Unmap(p+cuda.Addr(n), n))
		require.NoError(t, c.Unreserve(p, 2*n))
	})
}

func TestHostMemory(t *testing.T) {
	c := gpu(t)
	s, k := stream(t, c), kernel(t, c, "add")
	p := mapping(t, 4096)
	d, err := c.HostRegister(p, 4096)
	require.NoError(t, err)
	*(*uint32)(p) = 40
	require.NoError(t, k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, params(addParams{d, 1, 2})))
	require.NoError(t, s.Sync())
	require.EqualValues(t, 42, *(*uint32)(p))
	_, err = c.HostRegister(p, 4096)
	require.ErrorIs(t, err, fault.ErrArgument, "registered already")
	require.NoError(t, c.HostUnregister(p))
	require.ErrorIs(t, c.HostUnregister(p), fault.ErrArgument)
}

func TestWrongMemory(t *testing.T) {
	c := gpu(t)
	s := stream(t, c)
	m, n := create(t, c)
	p, mapped, host := alloc(t, c, 1<<20), vmm(t, c, m, n), cuda.Addr(uintptr(mapping(t, 4096)))
	_, err := c.IPCHandle(mapped)
	t.Log(err)
	require.Error(t, err, "memory of Create by IPC")
	for name, err := range map[string]error{
		"free host memory": c.Free(host), "free nothing of ours": c.Free(p + 1<<40), "unmap": c.Unmap(p, n),
		"retain": testkit.ErrOf(c.Retain(p)), "retain host memory": testkit.ErrOf(c.Retain(host)),
		"ipc of host memory": testkit.ErrOf(c.IPCHandle(host)), "import": testkit.ErrOf(c.Import(0)),
		"create":                testkit.ErrOf(c.Create(n + 1)),
		"a handle that is none": testkit.ErrOf(c.OpenIPC(cuda.IPCHandle{})), "map twice": c.Map(mapped, n, m),
	} {
		t.Log(name, err)
		var e *cuda.Error
		require.ErrorAs(t, err, &e, name)
	}
	h, err := c.IPCHandle(p)
	require.NoError(t, err)
	_, err = c.OpenIPC(h)
	t.Log(err)
	require.Error(t, err, "one's own handle")
	_, err = c.Alloc(1 << 50)
	t.Log(err)
	require.ErrorIs(t, err, fault.ErrLimit)
	_, err = c.Create(1 << 50)
	t.Log(err)
	require.ErrorIs(t, err, fault.ErrLimit)
	require.NoError(t, s.Sync(), "none of that broke the context")
}

func TestNoLeaks(t *testing.T) {
	c := gpu(t)
	ptx, err := os.ReadFile("testdata/kernels.ptx")
	require.NoError(t, err)
	round := func() {
		s, err := c.NewStream()
		require.NoError(t, err)
		e, err := c.NewEvent(false)
		require.NoError(t, err)
		m, err := c.LoadModule(string(ptx))
		require.NoError(t, err)
		k, err := m.Function("none")
		require.NoError(t, err)
		require.NoError(t, s.BeginCapture())
		require.NoError(t, k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, nil))
		g, err := s.EndCapture()
		require.NoError(t, err)
		require.NoError(t, g.Launch(s))
		require.NoError(t, s.Sync())
		n, err := c.Granularity()
		require.NoError(t, err)
		a, err := c.Create(n)
		require.NoError(t, err)
		fd, err := c.Export(a)
		require.NoError(t, err)
		b, err := c.Import(fd)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		p, err := c.Reserve(n)
		require.NoError(t, err)
		require.NoError(t, c.Map(p, n, b))
		d, err := c.Retain(p)
		require.NoError(t, err)
		require.NoError(t, c.Unmap(p, n))
		require.NoError(t, c.Unreserve(p, n))
		for _, x := range []cuda.Allocation{a, b, d} {
			require.NoError(t, c.Release(x))
		}
		for _, err := range []error{g.Close(), m.Close(), e.Close(), s.Close()} {
			require.NoError(t, err)
		}
	}
	descriptors := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(d)
	}
	for range 3 { // the driver keeps some memory for itself
		round()
	}
	files := descriptors()
	before, _, err := c.Available()
	require.NoError(t, err)
	for range 50 {
		round()
	}
	after, _, err := c.Available()
	require.NoError(t, err)
	require.InDelta(t, before, after, 16<<20)
	require.Equal(t, files, descriptors())
}

func BenchmarkInspect(b *testing.B) {
	p := alloc(b, gpu(b), 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cuda.Inspect(p); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDMABuf: descriptors of device memory for network cards.
func TestDMABuf(t *testing.T) {
	c := gpu(t)
	info, err := cuda.Describe(c.Device())
	require.NoError(t, err)
	t.Logf("ordered %v, flush %v", info.OrderedRDMA, info.FlushRDMA)
	if info.FlushRDMA {
		require.NoError(t, c.FlushRDMAWrites())
	}
	if !info.DMABuf {
		t.Skipf("%v exports no dma-bufs", info)
	}
	page := os.Getpagesize()
	m, n := create(t, c)
	p, linear := vmm(t, c, m, n), alloc(t, c, n)
	open := testkit.Descriptors(t)
	for _, at := range []cuda.Addr{p, p + cuda.Addr(page), linear} {
		fd, err := c.DMABuf(at, n-page)
		require.NoError(t, err)
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC)
		require.NoError(t, unix.Close(fd))
	}
	require.Equal(t, open, testkit.Descriptors(t))
	for name, bad := range map[string]func() (int, error){
		"no bytes":     func() (int, error) { return c.DMABuf(p, 0) },
		"half a page":  func() (int, error) { return c.DMABuf(p, page/2) },
		"in a page":    func() (int, error) { return c.DMABuf(p+8, page) },
		"too long":     func() (int, error) { return c.DMABuf(p, 2*n) },
		"not a GPU's":  func() (int, error) { return c.DMABuf(cuda.Addr(uintptr(mapping(t, page))), page) },
		"not anything": func() (int, error) { return c.DMABuf(cuda.Addr(page), page) },
	} {
		_, err := bad()
		require.ErrorIs(t, err, fault.ErrArgument, name)
	}
}
