//go:build linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) { emulated.Main(m.Run) }

func device(t *testing.T, i int) (*cuda.Context, *cuda.Stream) {
	t.Helper()
	if !emulated.Active() {
		t.Skip("not over the emulated driver")
	}
	c, err := cuda.Primary(hw.CUDA(i))
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Close() // fails in a broken context
		require.NoError(t, c.Close())
	})
	return c, s
}

// add is a kernel that adds 1 to the 32-bit word at p.
func add(t *testing.T, c *cuda.Context, s *cuda.Stream, p cuda.Addr) error {
	ptx, err := os.ReadFile("../../../hw/cuda/testdata/kernels.ptx")
	require.NoError(t, err)
	m, err := c.LoadModule(string(ptx))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	k, err := m.Function("add")
	require.NoError(t, err)
	x := struct {
		p    cuda.Addr
		n, x uint32
	}{p, 1, 1}
	return k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, unsafe.Slice((*byte)(unsafe.Pointer(&x)), unsafe.Sizeof(x)))
}

func mapped(t *testing.T, c *cuda.Context) (cuda.Allocation, cuda.Addr, int) {
	n, err := c.Granularity()
	require.NoError(t, err)
	m, err := c.Create(n)
	require.NoError(t, err)
	p, err := c.Reserve(n)
	require.NoError(t, err)
	require.NoError(t, c.Map(p, n, m))
	return m, p, n
}

func mapping(t *testing.T) unsafe.Pointer {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return unsafe.Pointer(&b[0])
}

func TestDevices(t *testing.T) {
	device(t, 0)
	all, err := cuda.Devices()
	require.NoError(t, err)
	n := 4
	if s := os.Getenv("UBCOLL_EMULATE_DEVICES"); s != "" {
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	require.Len(t, all, n)
	for _, d := range all {
		require.Contains(t, d.Name, "Emulated GPU")
		require.Equal(t, [3]int{9, 0, 10}, [3]int{d.Major, d.Minor, d.Multiprocessors})
		require.True(t, d.VMM && d.PosixFD && d.Multicast)
		require.False(t, d.Fabric)
	}
}

// Another program finds the library in its folder, which scripts/test-rdma takes from the log.
func TestLibrary(t *testing.T) {
	dir := emulated.Library(t)
	t.Log("the library is in", dir)
	for _, x := range []struct {
		name string
		env  []string
		want string
	}{
		{"seven", append(emulated.Environ(dir), "UBCOLL_EMULATE_DEVICES=7"), "--- PASS: TestDevices"},
		{"told not to", []string{"UBCOLL_EMULATE=0", "UBCOLL_EMULATED="}, "--- SKIP: TestDevices"},
	} {
		t.Run(x.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestDevices$", "-test.v")
			cmd.Env = append(os.Environ(), x.env...)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), x.want)
		})
	}
}

// Touching forbidden memory breaks the context; it works again once all users have released it.
func TestFaults(t *testing.T) {
	for _, x := range []struct {
		name string
		at   func(t *testing.T, c *cuda.Context) cuda.Addr
	}{
		{"freed", func(t *testing.T, c *cuda.Context) cuda.Addr {
			p, err := c.Alloc(4096)
			require.NoError(t, err)
			require.NoError(t, c.Free(p))
			return p
		}},
		{"past the end", func(t *testing.T, c *cuda.Context) cuda.Addr {
			p, err := c.Alloc(1000)
			require.NoError(t, err)
			return p + 1024
		}},
		{"mapped without access", func(t *testing.T, c *cuda.Context) cuda.Addr {
			_, p, _ := mapped(t, c)
			return p
		}},
		{"unmapped", func(t *testing.T, c *cuda.Context) cuda.Addr {
			_, p, n := mapped(t, c)
			require.NoError(t, c.Access(p, n, c.Device()))
			require.NoError(t, c.Unmap(p, n))
			return p
		}},
		{"reserved", func(t *testing.T, c *cuda.Context) cuda.Addr {
			p, err := c.Reserve(2 << 20)
			require.NoError(t, err)
			return p
		}},
	} {
		for _, what := range []string{"kernel", "copy", "fill", "zero"} {
			t.Run(x.name+"/"+what, func(t *testing.T) {
				c, s := device(t, 1)
				good, err := c.Alloc(4)
				require.NoError(t, err)
				p := x.at(t, c)
				switch what {
				case "kernel":
					err = add(t, c, s, p)
				case "copy":
					err = s.Copy(p, good, 4)
				case "fill":
					err = s.Fill(p, 1, 4)
				case "zero":
					err = s.Fill(p, 0, 1<<20)
				}
				require.NoError(t, err)
				for range 2 {
					var e *cuda.Error
					require.ErrorAs(t, s.Sync(), &e)
					require.Equal(t, "CUDA_ERROR_ILLEGAL_ADDRESS", e.Name)
				}
			})
		}
	}
	c, s := device(t, 1)
	p, err := c.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, s.Upload(p, []byte{1, 0, 0, 0}))
	require.NoError(t, add(t, c, s, p))
	got := make([]byte, 4)
	require.NoError(t, s.Download(got, p))
	require.Equal(t, []byte{2, 0, 0, 0}, got)
	require.NoError(t, c.Free(p))
}

// Go's own faults still reach Go.
func TestGoFaults(t *testing.T) {
	c, s := device(t, 0)
	p, err := c.Alloc(4)
	require.NoError(t, err)
	require.NoError(t, s.Fill(p, 0, 4))
	require.NoError(t, s.Sync())
	require.NoError(t, c.Free(p))
	require.Panics(t, func() { *(*int)(nil) = 1 })
}

func TestOutOfMemory(t *testing.T) {
	c, _ := device(t, 2)
	t.Setenv("UBCOLL_EMULATE_MEMORY", "6291456") // three granules
	free, total, err := c.Available()
	require.NoError(t, err)
	require.Equal(t, [2]int{6 << 20, 6 << 20}, [2]int{free, total})
	m, p, n := mapped(t, c)
	fd, err := c.Export(m)
	require.NoError(t, err)
	again, err := c.Import(fd) // an import takes no memory
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	q, err := c.Alloc(4 << 20)
	require.NoError(t, err)
	for _, err := range []error{testkit.ErrOf(c.Create(n)), testkit.ErrOf(c.Alloc(1))} {
		require.ErrorIs(t, err, fault.ErrLimit)
	}
	require.NoError(t, c.Free(q))
	require.NoError(t, c.Release(m))
	require.NoError(t, c.Release(again))
	free, _, err = c.Available()
	require.NoError(t, err)
	require.Equal(t, 4<<20, free, "what is mapped is there")
	require.NoError(t, c.Unmap(p, n))
	require.NoError(t, c.Unreserve(p, n))
	free, _, err = c.Available()
	require.NoError(t, err)
	require.Equal(t, 6<<20, free)
}

func TestInjectedFailures(t *testing.T) {
	c, s := device(t, 0)
	t.Setenv("UBCOLL_EMULATE_FAIL", "cuMemAlloc:3,cuMemGetInfo:1=719 cuMemsetD8Async=801")
	for i := range 4 {
		p, err := c.Alloc(1)
		if i == 2 {
			require.ErrorIs(t, err, fault.ErrLimit)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, c.Free(p))
	}
	var e *cuda.Error
	_, _, err := c.Available()
	require.ErrorAs(t, err, &e)
	require.Equal(t, "CUDA_ERROR_LAUNCH_FAILED", e.Name)
	require.ErrorIs(t, s.Fill(64, 0, 1), fault.ErrNotSupported)
	t.Setenv("UBCOLL_EMULATE_FAIL", "cuMemAlloc")
	require.Error(t, testkit.ErrOf(c.Alloc(1)), "it counts from anew")
}

// A large fill with zeros takes no memory, but must read as zeros.
func TestZero(t *testing.T) {
	c, s := device(t, 0)
	const n = 64<<20 + 100
	p, err := c.Alloc(n)
	require.NoError(t, err)
	require.NoError(t, s.Fill(p, 7, 1<<20))
	require.NoError(t, s.Fill(p+n-5000, 7, 5000))
	require.NoError(t, s.Fill(p+1, 0, n-2))
	got := make([]byte, n)
	require.NoError(t, s.Download(got, p))
	want := make([]byte, n)
	want[0], want[n-1] = 7, 7
	require.True(t, string(want) == string(got))
	require.NoError(t, c.Free(p))
}

// A capture takes in another stream through an event, and releases it at the end.
func TestForkedCapture(t *testing.T) {
	c, s := device(t, 0)
	_, side := device(t, 0)
	e, err := c.NewEvent(false)
	require.NoError(t, err)
	p, err := c.Alloc(3)
	require.NoError(t, err)
	require.NoError(t, s.Upload(p, []byte{0, 0, 0}))
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(p, 1, 1))
	require.NoError(t, e.Record(s))
	require.NoError(t, side.Wait(e))
	require.NoError(t, side.Copy(p+1, p, 1))
	id, err := side.Capture()
	require.NoError(t, err)
	require.NotZero(t, id)
	require.NoError(t, e.Record(side))
	require.NoError(t, s.Wait(e))
	require.NoError(t, s.Copy(p+2, p+1, 1))
	g, err := s.EndCapture()
	require.NoError(t, err)
	id, err = side.Capture()
	require.NoError(t, err)
	require.Zero(t, id)
	require.NoError(t, g.Launch(side))
	got := make([]byte, 3)
	require.NoError(t, side.Download(got, p))
	require.Equal(t, []byte{1, 1, 1}, got)

	require.NoError(t, s.BeginCapture())
	plain, err := c.NewEvent(false)
	require.NoError(t, err)
	require.NoError(t, plain.Record(side))
	require.ErrorIs(t, s.Wait(plain), fault.ErrArgument, "it is not of the capture")
	_, err = s.EndCapture()
	require.ErrorIs(t, err, fault.ErrArgument)
	for _, err := range []error{g.Close(), e.Close(), plain.Close(), c.Free(p)} {
		require.NoError(t, err)
	}
}

// A stream's thread ends with it.
func TestThreads(t *testing.T) {
	threads := func() int {
		d, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		return len(d)
	}
	c, s := device(t, 0)
	p, err := c.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, s.Fill(p, 1, 1))
	require.NoError(t, s.Sync())
	before := threads()
	for range 200 {
		x, err := c.NewStream()
		require.NoError(t, err)
		require.NoError(t, x.Fill(p, 1, 1))
		require.NoError(t, x.Close())
	}
	// The Go runtime may have started some threads itself.
	testkit.Eventually(t, func() bool { return threads() < before+50 })
	require.NoError(t, c.Free(p))
}

// Runs the checks of testdata/fibers.
func TestFibers(t *testing.T) {
	testkit.Long(t)
	emulated.Library(t) // skips if there is no compiler
	cxx := []string{"c++"}
	if s := strings.Fields(os.Getenv("CXX")); len(s) > 0 {
		cxx = s
	}
	prog := filepath.Join(t.TempDir(), "fibers")
	args := append(cxx[1:], "-std=c++17", "-O1", "-pthread", "-o", prog, "testdata/fibers/main.cc", "testdata/fiber.cc",
		"testdata/guard.cc")
	out, err := exec.Command(cxx[0], args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(check string, env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), prog, check)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, check := range []string{"all", "barriers", "polls", "ranks", "ends"} {
		t.Run(check, func(t *testing.T) {
			out, err := run(check)
			require.NoError(t, err, "%s", out)
		})
	}
	t.Run("order", func(t *testing.T) {
		orders := map[string]bool{}
		for _, seed := range []string{"1", "2", "3"} {
			first, err := run("order", "UBCOLL_EMULATE_SEED="+seed)
			require.NoError(t, err, "%s", first)
			again, err := run("order", "UBCOLL_EMULATE_SEED="+seed)
			require.NoError(t, err)
			require.Equal(t, first, again)
			orders[first] = true
		}
		require.Len(t, orders, 3)
	})
	t.Run("lost", func(t *testing.T) {
		out, err := run("lost")
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit))
		require.Equal(t, unix.SIGABRT, exit.Sys().(interface{ Signal() unix.Signal }).Signal())
		require.Contains(t, out, "kernel lost: in block 0, 1 threads ended while 3 wait for them in a barrier")
	})
}
