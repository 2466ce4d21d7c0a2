//go:build linux

package cuda_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// gpus returns the contexts of n devices. On a machine without any, the test skips, or fails if UBCOLL_REQUIRE has
// cuda.
func gpus(t testing.TB, n int) []*cuda.Context {
	t.Helper()
	if p := cuda.Have(); p.Err != nil {
		testkit.Missing(t, "cuda", p)
	}
	all, err := cuda.Devices()
	require.NoError(t, err)
	if len(all) < n {
		t.Skipf("%d devices, and %d wanted", len(all), n)
	}
	cs := make([]*cuda.Context, n)
	for i := range cs {
		cs[i], err = cuda.Primary(hw.CUDA(i))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cs[i].Close()) })
	}
	return cs
}

func gpu(t testing.TB) *cuda.Context { t.Helper(); return gpus(t, 1)[0] }

func stream(t testing.TB, c *cuda.Context) *cuda.Stream {
	s, err := c.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func alloc(t testing.TB, c *cuda.Context, n int) cuda.Addr {
	p, err := c.Alloc(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Free(p)) })
	return p
}

func kernel(t testing.TB, c *cuda.Context, name string) *cuda.Function {
	ptx, err := os.ReadFile("testdata/kernels.ptx")
	require.NoError(t, err)
	m, err := c.LoadModule(string(ptx))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	k, err := m.Function(name)
	require.NoError(t, err)
	return k
}

// addParams are the parameters of the kernel add.
type addParams struct {
	p    cuda.Addr
	n, x uint32
}

func params[T any](p T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&p)), unsafe.Sizeof(p)) }

func bytesOf(r *rand.ChaCha8, n int) []byte {
	b := make([]byte, n)
	r.Read(b)
	return b
}

func random(t *testing.T) *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], testkit.Seed(t))
	return rand.NewChaCha8(key)
}

func TestDevices(t *testing.T) {
	gpu(t)
	major, minor, err := cuda.Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, major, 11)
	t.Logf("CUDA %d.%d", major, minor)
	all, err := cuda.Devices()
	require.NoError(t, err)
	seen := map[[16]byte]bool{}
	for i, d := range all {
		type fields cuda.Info // without String
		t.Logf("%+v", fields(d))
		require.Equal(t, hw.CUDA(i), d.Device)
		require.NotEmpty(t, d.Name)
		require.Regexp(t, `^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.0$`, d.PCI)
		require.Positive(t, d.Major)
		require.Positive(t, d.Multiprocessors)
		require.Greater(t, d.Memory, 1<<28)
		require.GreaterOrEqual(t, d.SharedMemory, 48<<10)
		require.False(t, seen[d.UUID], "twice %x", d.UUID)
		seen[d.UUID] = true
	}
}

func TestCopies(t *testing.T) {
	c := gpu(t)
	s, r := stream(t, c), random(t)
	for _, n := range []int{1, 3, 4096, 1<<20 + 1} {
		want := bytesOf(r, n)
		a, b := alloc(t, c, n), alloc(t, c, n)
		require.NoError(t, s.Upload(a, want))
		require.NoError(t, s.Copy(b, a, n))
		got := make([]byte, n)
		require.NoError(t, s.Download(got, b))
		require.Equal(t, want, got)
		require.NoError(t, s.Fill(b, 0xa5, n/2))
		require.NoError(t, s.Download(got, b))
		for i := range n / 2 {
			want[i] = 0xa5
		}
		require.Equal(t, want, got)
	}
	require.NoError(t, s.Upload(0, nil))
	require.NoError(t, s.Download(nil, 0))
	done, err := s.Done()
	require.NoError(t, err)
	require.True(t, done)
}

func TestKernel(t *testing.T) {
	c := gpu(t)
	s, k, r := stream(t, c), kernel(t, c, "add"), random(t)
	require.Positive(t, k.Registers)
	require.GreaterOrEqual(t, k.MaxThreads, 256)
	for _, n := range []int{1, 255, 256, 100001} {
		data := bytesOf(r, 4*n)
		p := alloc(t, c, 4*n+4)
		require.NoError(t, s.Fill(p, 0xee, 4*n+4))
		require.NoError(t, s.Upload(p, data))
		l := cuda.Launch{Grid: (n + 255) / 256, Block: 256}
		require.NoError(t, k.Launch(s, l, params(addParams{p, uint32(n), 0x01020304})))
		got := make([]byte, 4*n+4)
		require.NoError(t, s.Download(got, p))
		for i := range n {
			want := binary.LittleEndian.Uint32(data[4*i:]) + 0x01020304
			require.Equal(t, want, binary.LittleEndian.Uint32(got[4*i:]), "element %d of %d", i, n)
		}
		require.EqualValues(t, 0xeeeeeeee, binary.LittleEndian.Uint32(got[4*n:]), "past the end")
	}
	few, err := k.Resident(cuda.Launch{Block: 1024})
	require.NoError(t, err)
	many, err := k.Resident(cuda.Launch{Block: 32})
	require.NoError(t, err)
	require.Greater(t, many, few)
	big := cuda.Launch{Grid: 1, Block: 1, Shared: 64 << 10}
	p := alloc(t, c, 4)
	require.ErrorIs(t, k.Launch(s, big, params(addParams{p, 0, 0})), fault.ErrArgument)
	require.NoError(t, k.AllowShared(64<<10))
	require.NoError(t, k.Launch(s, big, params(addParams{p, 0, 0})))
	require.ErrorIs(t, k.AllowShared(1<<30), fault.ErrArgument)
	require.NoError(t, s.Sync())
	require.Error(t, k.Launch(s, cuda.Launch{Grid: 1, Block: 4096}, params(addParams{})), "a block that is too large")
	require.Error(t, k.Launch(s, cuda.Launch{Grid: 0, Block: 1}, params(addParams{})), "no block")
	none := kernel(t, c, "none")
	require.NoError(t, none.Launch(s, cuda.Launch{Grid: 1, Block: 1}, nil))
	require.NoError(t, s.Sync())
}

func TestModuleErrors(t *testing.T) {
	c := gpu(t)
	for _, x := range []struct {
		name, ptx, log string
		class          error
	}{
		{"text", "nonsense", "", fault.ErrArgument},
		{"instruction", ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\nfrobnicate;\nret;\n}\n",
			"line 6", fault.ErrArgument},
		{"version", ".version 99.0\n.target sm_80\n.address_size 64\n", "", hw.ErrNotSupported},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := c.LoadModule(x.ptx)
			t.Log(err)
			require.ErrorIs(t, err, x.class)
			var e *cuda.Error
			require.ErrorAs(t, err, &e)
			require.Contains(t, e.Log, x.log)
		})
	}
	m, err := c.LoadModule(".version 7.0\n.target sm_80\n.address_size 64\n")
	require.NoError(t, err)
	_, err = m.Function("nobody")
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, `"nobody"`)
	require.NoError(t, m.Close())
}

// A module is assembled while a kernel runs. Its first function is loaded at the latest when the kernel has ended.
func TestModuleBeside(t *testing.T) {
	if os.Getenv("CUDA_MODULE_LOADING") == "EAGER" {
		t.Skip("then the driver waits for kernels")
	}
	c := gpu(t)
	s, k := stream(t, c), kernel(t, c, "wait")
	flag := mapping(t, 4096)
	d, err := c.HostRegister(flag, 4096)
	require.NoError(t, err)
	require.NoError(t, k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, params(waitParams{d, uint64(testkit.Limit)})))
	ptx, err := os.ReadFile("testdata/kernels.ptx")
	require.NoError(t, err)
	var all sync.WaitGroup
	modules, errs := make([]*cuda.Module, 4), make([]error, 4)
	for i := range modules {
		all.Go(func() { modules[i], errs[i] = c.LoadModule(fmt.Sprintf("%s// %d\n", ptx, i)) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	done, err := s.Done()
	require.NoError(t, err)
	require.False(t, done)
	*(*uint32)(flag) = 1
	for _, m := range modules {
		k, err := m.Function("none")
		require.NoError(t, err)
		require.NoError(t, k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, nil))
	}
	require.NoError(t, s.Sync())
	for _, m := range modules {
		require.NoError(t, m.Close())
	}
	require.NoError(t, c.HostUnregister(flag))
}

type waitParams struct {
	flag  cuda.Addr
	limit uint64
}

// A kernel that waits holds up its stream and nothing else.
func TestStreamsAndEvents(t *testing.T) {
	c := gpu(t)
	first, second := stream(t, c), stream(t, c)
	k := kernel(t, c, "wait")
	flag := mapping(t, 4096)
	d, err := c.HostRegister(flag, 4096)
	require.NoError(t, err)
	start, err := c.NewEvent(true)
	require.NoError(t, err)
	end, err := c.NewEvent(true)
	require.NoError(t, err)
	done, err := end.Done()
	require.NoError(t, err)
	require.True(t, done, "nothing was recorded")
	p := alloc(t, c, 1)
	require.NoError(t, second.Fill(p, 0, 1))
	require.NoError(t, start.Record(first))
	require.NoError(t, k.Launch(first, cuda.Launch{Grid: 1, Block: 1}, params(waitParams{d, uint64(testkit.Limit)})))
	require.NoError(t, first.Fill(p, 7, 1))
	require.NoError(t, end.Record(first))
	require.NoError(t, second.Sync(), "another stream goes on")
	require.NoError(t, second.Wait(end))
	time.Sleep(20 * time.Millisecond)
	for name, isDone := range map[string]func() (bool, error){"first": first.Done, "second": second.Done,
		"event": end.Done} {
		done, err := isDone()
		require.NoError(t, err)
		require.False(t, done, name)
	}
	_, err = end.Since(start)
	require.Error(t, err, "not done")
	*(*uint32)(flag) = 1
	got := make([]byte, 1)
	require.NoError(t, second.Download(got, p))
	require.Equal(t, []byte{7}, got, "the second stream waited for the first")
	require.NoError(t, end.Sync())
	took, err := end.Since(start)
	require.NoError(t, err)
	require.Greater(t, took, 15*time.Millisecond)
	require.Less(t, took, testkit.Limit, "its own end")
	require.NoError(t, start.Close())
	require.NoError(t, end.Close())
	require.NoError(t, c.HostUnregister(flag))
}

func TestStreamFrom(t *testing.T) {
	c := gpu(t)
	s := stream(t, c)
	theirs, err := c.StreamFrom(s.Handle())
	require.NoError(t, err)
	require.NoError(t, theirs.Sync())
	require.NoError(t, theirs.Close())
	require.NoError(t, s.Sync(), "it is still there")
	def, err := c.StreamFrom(0)
	require.NoError(t, err)
	require.NoError(t, def.Sync())
	require.NoError(t, def.Close())
}

func TestGraph(t *testing.T) {
	c := gpu(t)
	s, k := stream(t, c), kernel(t, c, "add")
	const n = 1000
	a, b := alloc(t, c, 4*n), alloc(t, c, 4*n)
	require.NoError(t, s.Fill(a, 0, 4*n))
	require.NoError(t, s.Fill(b, 9, 4*n))
	id, err := s.Capture()
	require.NoError(t, err)
	require.Zero(t, id)
	require.NoError(t, s.BeginCapture())
	id, err = s.Capture()
	require.NoError(t, err)
	require.NotZero(t, id)
	borrowed, err := c.StreamFrom(s.Handle())
	require.NoError(t, err)
	require.True(t, borrowed.OwnCapture())
	l := cuda.Launch{Grid: 4, Block: 256}
	require.NoError(t, k.Launch(s, l, params(addParams{a, n, 1})))
	require.NoError(t, s.Copy(b, a, 4*n))
	other := make(chan error) // a capture does not hinder other goroutines
	go func() {
		p, err := c.Alloc(1 << 20)
		if err == nil {
			err = c.Free(p)
		}
		other <- err
	}()
	require.NoError(t, <-other)
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.False(t, borrowed.OwnCapture())
	got := make([]byte, 4*n)
	require.NoError(t, s.Download(got, b))
	require.EqualValues(t, 9, got[0], "a captured operation was done")
	for range 5 {
		require.NoError(t, g.Launch(s))
	}
	require.NoError(t, s.Download(got, b))
	for i := range n {
		require.EqualValues(t, 5, binary.LittleEndian.Uint32(got[4*i:]))
	}
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Launch(s), fault.ErrClosed)

	// A kernel's new parameters apply to later launches, not to those already queued.
	require.NoError(t, s.Fill(a, 0, 4*n))
	require.NoError(t, s.BeginCapture())
	require.NoError(t, k.Launch(s, l, params(addParams{a, n, 1})))
	node, err := s.Last()
	require.NoError(t, err)
	require.NoError(t, s.Copy(b, a, 4*n))
	g, err = s.EndCapture()
	require.NoError(t, err)
	for _, x := range []uint32{1, 10, 100, 1000} {
		require.NoError(t, g.SetKernel(node, k, l, params(addParams{a, n, x})))
		require.NoError(t, g.Launch(s))
	}
	require.NoError(t, s.Download(got, b))
	for i := range n {
		require.EqualValues(t, 1111, binary.LittleEndian.Uint32(got[4*i:]))
	}
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.SetKernel(node, k, l, params(addParams{a, n, 1})), fault.ErrClosed)

	// Waiting breaks a capture; the stream survives it.
	_, err = s.EndCapture()
	require.ErrorIs(t, err, fault.ErrArgument, "no capture")
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, s.Sync(), fault.ErrArgument)
	_, err = s.Capture()
	t.Log(err)
	_, err = s.EndCapture()
	require.ErrorIs(t, err, fault.ErrArgument)
	require.False(t, borrowed.OwnCapture())
	require.NoError(t, s.Download(got, b))
}

// Goroutines move between threads and share a context.
func TestGoroutines(t *testing.T) {
	c := gpu(t)
	r := random(t)
	var wg sync.WaitGroup
	for range 16 {
		data := bytesOf(r, 100_000)
		s := stream(t, c)
		wg.Go(func() {
			for range 20 {
				p, err := c.Alloc(len(data))
				if err == nil {
					err = s.Upload(p, data)
				}
				got := make([]byte, len(data))
				if err == nil {
					err = s.Download(got, p)
				}
				if err != nil || string(got) != string(data) || c.Free(p) != nil {
					t.Errorf("%v", err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLaunch(b *testing.B) {
	c := gpu(b)
	s, k := stream(b, c), kernel(b, c, "none")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, nil); err != nil {
			b.Fatal(err)
		}
		if i%256 == 0 {
			s.Sync()
		}
	}
}

func BenchmarkDone(b *testing.B) {
	s := stream(b, gpu(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Done(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnter(b *testing.B) { // and little else
	s := stream(b, gpu(b))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Capture(); err != nil {
			b.Fatal(err)
		}
	}
}
