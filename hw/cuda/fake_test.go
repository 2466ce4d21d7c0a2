//go:build linux && cgo && (amd64 || arm64)

package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() { setLibrary = cuda.SetLibrary }

// TestParity compares driver.h with a toolkit's header, if there is one.
func TestParity(t *testing.T) {
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	for _, home := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda", "/usr"} {
		include := filepath.Join(home, "include")
		if _, err := os.Stat(filepath.Join(include, "cuda.h")); home == "" || err != nil {
			continue
		}
		out, err := exec.Command(cc, "-std=c11", "-fsyntax-only", "-I", include, "testdata/parity.c").CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("compared with %s", include)
		return
	}
	t.Skip("no cuda.h")
}

// fakeDriver compiles testdata/fake.c.
func fakeDriver(t *testing.T) string {
	lib := filepath.Join(t.TempDir(), "libfake.so")
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	out, err := exec.Command(cc, "-std=c11", "-shared", "-fPIC", "-o", lib,
		"testdata/fake.c", "testdata/fake_all.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return lib
}

// other runs this program again with another library in place of the driver.
func other(t *testing.T, lib string, env []string, args ...string) string {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(append(os.Environ(), "UBCOLL_TEST_LIBRARY="+lib, testkit.NoSleep), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestProbe(t *testing.T) {
	lib := fakeDriver(t)
	for _, c := range []struct {
		name, lib string
		env       []string
		want      []string
	}{
		{"no library", "/no/libcuda.so.1", nil, []string{"CUDA: no CUDA driver: /no/libcuda.so.1: ", ": not supported"}},
		{"no driver", "libm.so.6", nil, []string{"CUDA: the CUDA driver is too old: libm.so.6 has no cuInit: not supported"}},
		{"no device", lib, []string{"UBCOLL_TEST_FAKE=cuInit=100"},
			[]string{"CUDA: the CUDA driver is there but no device that it can use: cuInit: CUDA_ERROR_FAKE: a fake error"}},
		{"none of them", lib, nil, []string{"CUDA: the CUDA driver is there but no device: not supported"}},
		{"unknown", lib, []string{"UBCOLL_TEST_FAKE=cuInit=999"}, []string{"CUDA: could not tell: cuInit: CUDA_ERROR_FAKE"}},
		{"count", lib, []string{"UBCOLL_TEST_FAKE=cuDeviceGetCount=999"}, []string{"CUDA: could not tell: cuDeviceGetCount"}},
		{"there", lib, []string{"UBCOLL_TEST_FAKE_DEVICES=1"}, []string{"CUDA: available\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := other(t, c.lib, append(c.env, testkit.ChildVar+"=probe"))
			for _, want := range c.want {
				require.Contains(t, out, want)
			}
		})
	}
}

// TestFake runs itself on the fake driver, in another process.
func TestFake(t *testing.T) {
	if os.Getenv("UBCOLL_TEST_LIBRARY") == "" {
		log := filepath.Join(t.TempDir(), "log")
		out := other(t, fakeDriver(t), []string{"UBCOLL_TEST_FAKE_LOG=" + log, "UBCOLL_TEST_FAKE_DEVICES=2"},
			"-test.run=^TestFake$", "-test.v")
		require.Contains(t, out, "--- PASS: TestFake/")
		t.Log(out)
		return
	}
	f := &faked{log: os.Getenv("UBCOLL_TEST_FAKE_LOG")}
	t.Run("version", func(t *testing.T) {
		major, minor, err := cuda.Version()
		require.NoError(t, err)
		require.Equal(t, [2]int{12, 8}, [2]int{major, minor})
	})
	t.Run("devices", f.devices)
	t.Run("contexts are restored", f.restored)
	t.Run("steps that fail undo the others", f.undone)
	t.Run("memory", f.memory)
	t.Run("closed", f.closed)
	t.Run("module", func(t *testing.T) {
		t.Setenv("UBCOLL_TEST_FAKE", "cuLibraryLoadData=218")
		_, err := f.context(t).LoadModule("nonsense")
		var e *cuda.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "ptxas: line 1: nonsense", e.Log)
	})
}

type faked struct{ log string }

// calls returns the calls of the driver since the last time.
func (f *faked) calls() string {
	b, _ := os.ReadFile(f.log)
	os.Remove(f.log)
	return strings.Join(strings.Fields(string(b)), " ")
}

func (f *faked) context(t *testing.T) *cuda.Context {
	c, err := cuda.Primary(hw.CUDA(1))
	require.NoError(t, err)
	return c
}

func (f *faked) devices(t *testing.T) {
	all, err := cuda.Devices()
	require.NoError(t, err)
	require.Len(t, all, 2)
	for name, d := range map[string]hw.Device{"host": hw.Host, "past the last": hw.CUDA(2), "negative": hw.CUDA(-2)} {
		_, err := cuda.Primary(d)
		require.ErrorIs(t, err, fault.ErrArgument, name)
		_, err = cuda.P2P(hw.CUDA(0), d)
		require.ErrorIs(t, err, fault.ErrArgument, name)
		require.ErrorIs(t, f.context(t).Access(0, 1, d), fault.ErrArgument, name)
	}
	_, err = cuda.P2P(hw.CUDA(1), hw.CUDA(1))
	require.ErrorIs(t, err, fault.ErrArgument)
}

const (
	enter = "cuCtxPushCurrent_v2 cuThreadExchangeStreamCaptureMode "
	leave = " cuThreadExchangeStreamCaptureMode cuCtxPopCurrent_v2"
)

// quick lists the calls that leave the thread's capture mode alone.
var quick = map[string]bool{"cuStreamGetCaptureInfo_v2": true, "cuGraphLaunch": true, "cuLaunchKernelEx": true,
	"cuGraphExecKernelNodeSetParams": true}

// Whatever a call does and however it ends, the thread's current context is the same afterwards.
func (f *faked) restored(t *testing.T) {
	c := f.context(t)
	s, err := c.NewStream()
	require.NoError(t, err)
	e, err := c.NewEvent(true)
	require.NoError(t, err)
	m, err := c.LoadModule("")
	require.NoError(t, err)
	k, err := m.Function("k")
	require.NoError(t, err)
	g, err := s.EndCapture()
	require.NoError(t, err)
	p := unsafe.Pointer(new(byte))
	for _, x := range []struct {
		call string
		do   func() error
	}{
		{"cuMemGetInfo_v2", func() error { _, _, err := c.Available(); return err }},
		{"cuMemAlloc_v2", func() error { _, err := c.Alloc(1); return err }},
		{"cuMemFree_v2", func() error { return c.Free(1) }},
		{"cuMemHostUnregister", func() error { return c.HostUnregister(p) }},
		{"cuIpcGetMemHandle", func() error { _, err := c.IPCHandle(1); return err }},
		{"cuIpcOpenMemHandle_v2", func() error { _, err := c.OpenIPC(cuda.IPCHandle{}); return err }},
		{"cuIpcCloseMemHandle", func() error { return c.CloseIPC(1) }},
		{"cuMemGetAllocationGranularity", func() error { _, err := c.Granularity(); return err }},
		{"cuMemCreate", func() error { _, err := c.Create(1); return err }},
		{"cuMemRelease", func() error { return c.Release(1) }},
		{"cuMemRetainAllocationHandle", func() error { _, err := c.Retain(1); return err }},
		{"cuMemExportToShareableHandle", func() error { _, err := c.Export(1); return err }},
		{"cuMemGetHandleForAddressRange", func() error { _, err := c.DMABuf(1, 1); return err }},
		{"cuFlushGPUDirectRDMAWrites", c.FlushRDMAWrites},
		{"cuMemImportFromShareableHandle", func() error { _, err := c.Import(1); return err }},
		{"cuMemAddressReserve", func() error { _, err := c.Reserve(1); return err }},
		{"cuMemAddressFree", func() error { return c.Unreserve(1, 1) }},
		{"cuMemMap", func() error { return c.Map(1, 1, 1) }},
		{"cuMemUnmap", func() error { return c.Unmap(1, 1) }},
		{"cuMemSetAccess", func() error { return c.Access(1, 1, hw.CUDA(0)) }},
		{"cuCtxEnablePeerAccess", func() error { return c.EnablePeer(c) }},
		{"cuStreamCreate", func() error { _, err := c.NewStream(); return err }},
		{"cuStreamGetCtx", func() error { _, err := c.StreamFrom(1); return err }},
		{"cuStreamQuery", func() error { _, err := s.Done(); return err }},
		{"cuStreamSynchronize", s.Sync},
		{"cuStreamWaitEvent", func() error { return s.Wait(e) }},
		{"cuMemcpyAsync", func() error { return s.Copy(1, 2, 3) }},
		{"cuMemsetD8Async", func() error { return s.Fill(1, 2, 3) }},
		{"cuEventCreate", func() error { _, err := c.NewEvent(false); return err }},
		{"cuEventRecord", func() error { return e.Record(s) }},
		{"cuEventQuery", func() error { _, err := e.Done(); return err }},
		{"cuEventSynchronize", e.Sync},
		{"cuEventElapsedTime", func() error { _, err := e.Since(e); return err }},
		{"cuStreamBeginCapture_v2", s.BeginCapture},
		{"cuStreamGetCaptureInfo_v2", func() error { _, err := s.Capture(); return err }},
		{"cuGraphLaunch", func() error { return g.Launch(s) }},
		{"cuGraphExecKernelNodeSetParams", func() error {
			return g.SetKernel(cuda.Node{}, k, cuda.Launch{Grid: 1, Block: 1}, []byte{1})
		}},
		{"cuLibraryLoadData", func() error { _, err := c.LoadModule(""); return err }},
		{"cuFuncSetAttribute", func() error { return k.AllowShared(1) }},
		{"cuOccupancyMaxActiveBlocksPerMultiprocessor", func() error { _, err := k.Resident(cuda.Launch{}); return err }},
		{"cuLaunchKernelEx", func() error { return k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, []byte{1}) }},
	} {
		t.Run(x.call, func(t *testing.T) {
			enter, leave := enter, leave
			if quick[x.call] {
				enter, leave = "cuCtxPushCurrent_v2 ", " cuCtxPopCurrent_v2"
			}
			f.calls()
			require.NoError(t, x.do())
			all := x.call
			if x.call == "cuLibraryLoadData" {
				all += " cuLibraryGetKernel"
			}
			require.Equal(t, enter+all+leave, f.calls())
			t.Setenv("UBCOLL_TEST_FAKE", x.call+"=2")
			err := x.do()
			var e *cuda.Error
			require.ErrorAs(t, err, &e)
			e.Log = "" // the fake assembler always writes a log
			require.Equal(t, cuda.Error{Call: x.call, Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY", Text: "out of memory"}, *e)
			require.ErrorIs(t, err, fault.ErrLimit)
			require.Equal(t, enter+x.call+leave, f.calls())
			// A destroyed context is not entered, so there is nothing to restore.
			t.Setenv("UBCOLL_TEST_FAKE", "cuCtxPushCurrent_v2=709")
			require.ErrorIs(t, x.do(), fault.ErrClosed)
			require.Equal(t, "cuCtxPushCurrent_v2", f.calls())
			if !quick[x.call] {
				t.Setenv("UBCOLL_TEST_FAKE", "cuThreadExchangeStreamCaptureMode=1")
				require.ErrorIs(t, x.do(), fault.ErrArgument)
				require.Equal(t, strings.TrimSpace(enter)+" cuCtxPopCurrent_v2", f.calls())
			}
			t.Setenv("UBCOLL_TEST_FAKE", "cuCtxPopCurrent_v2=709")
			require.ErrorIs(t, x.do(), fault.ErrClosed)
		})
	}
	f.calls()
}

func (f *faked) undone(t *testing.T) {
	c := f.context(t)
	s, err := c.NewStream()
	require.NoError(t, err)
	m, err := c.LoadModule("")
	require.NoError(t, err)
	p := unsafe.Pointer(new(byte))
	for _, x := range []struct {
		name, fail, calls string
		do                func() error
	}{
		{"host memory", "cuMemHostGetDevicePointer_v2", "cuMemHostRegister_v2 cuMemHostGetDevicePointer_v2 cuMemHostUnregister",
			func() error { _, err := c.HostRegister(p, 1); return err }},
		{"host memory at once", "cuMemHostRegister_v2", "cuMemHostRegister_v2",
			func() error { _, err := c.HostRegister(p, 1); return err }},
		{"capture", "cuGraphInstantiateWithFlags", "cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphDestroy",
			func() error { _, err := s.EndCapture(); return err }},
		{"module", "cuLibraryGetKernel", "cuLibraryLoadData cuLibraryGetKernel cuLibraryUnload",
			func() error { _, err := c.LoadModule("nonsense"); return err }},
		{"function", "cuFuncGetAttribute", "cuLibraryGetKernel cuKernelGetFunction cuFuncGetAttribute",
			func() error { _, err := m.Function("k"); return err }},
		{"upload", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2", func() error { return s.Upload(1, []byte{1}) }},
		{"download", "cuStreamSynchronize", "cuMemcpyDtoHAsync_v2 cuStreamSynchronize",
			func() error { return s.Download([]byte{1}, 1) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			f.calls()
			t.Setenv("UBCOLL_TEST_FAKE", x.fail+"=2")
			require.ErrorIs(t, x.do(), fault.ErrLimit)
			require.Equal(t, enter+x.calls+leave, f.calls())
		})
	}
}

func (f *faked) memory(t *testing.T) {
	for _, c := range []struct {
		name, kind, managed, pool string
		want                      cuda.Memory
	}{
		{"unknown", "0", "1", "1", cuda.Memory{}},
		{"host", "1", "", "", cuda.Memory{Type: cuda.HostSide, Device: hw.CUDA(1)}},
		{"device", "2", "0", "", cuda.Memory{Type: cuda.OnDevice, Device: hw.CUDA(1)}},
		{"managed", "2", "1", "", cuda.Memory{Type: cuda.Managed, Device: hw.CUDA(1)}},
		{"pool", "2", "", "0x100", cuda.Memory{Type: cuda.OnDevice, Device: hw.CUDA(1), Pool: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("UBCOLL_TEST_FAKE_TYPE", c.kind)
			t.Setenv("UBCOLL_TEST_FAKE_MANAGED", c.managed)
			t.Setenv("UBCOLL_TEST_FAKE_POOL", c.pool)
			m, err := cuda.Inspect(1)
			require.NoError(t, err)
			require.Equal(t, c.want, m)
		})
	}
	c := f.context(t)
	for _, n := range []int{0, -1} {
		_, err := c.Alloc(n)
		require.ErrorIs(t, err, fault.ErrArgument)
		_, err = c.Create(n)
		require.ErrorIs(t, err, fault.ErrArgument)
		_, err = c.Reserve(n)
		require.ErrorIs(t, err, fault.ErrArgument)
		_, err = c.HostRegister(unsafe.Pointer(new(byte)), n)
		require.ErrorIs(t, err, fault.ErrArgument)
	}
	_, err := c.Import(-1)
	require.ErrorIs(t, err, fault.ErrArgument)
}

// A closed object is not used, even together with an open one.
func (f *faked) closed(t *testing.T) {
	c := f.context(t)
	newStream := func() *cuda.Stream { s, err := c.NewStream(); require.NoError(t, err); return s }
	newEvent := func() *cuda.Event { e, err := c.NewEvent(true); require.NoError(t, err); return e }
	s, gone, e, goneEvent := newStream(), newStream(), newEvent(), newEvent()
	g, err := s.EndCapture()
	require.NoError(t, err)
	m, err := c.LoadModule("")
	require.NoError(t, err)
	k, err := m.Function("k")
	require.NoError(t, err)
	_, err = c.StreamFrom(0xbad)
	require.ErrorIs(t, err, fault.ErrArgument)
	theirs, err := c.StreamFrom(0)
	require.NoError(t, err)
	f.calls()
	require.NoError(t, theirs.Close())
	require.Empty(t, f.calls(), "a borrowed stream is not destroyed")
	for i, want := range []string{enter + "cuStreamDestroy_v2" + leave + " " + enter + "cuEventDestroy_v2" + leave, ""} {
		require.NoError(t, gone.Close())
		require.NoError(t, goneEvent.Close())
		require.Equal(t, want, f.calls(), i)
	}
	launch := cuda.Launch{Grid: 1, Block: 1}
	for name, err := range map[string]error{
		"borrowed": theirs.Sync(), "stream": gone.Sync(), "event": goneEvent.Sync(), "wait": s.Wait(goneEvent),
		"record": e.Record(gone), "graph": g.Launch(gone), "kernel": k.Launch(gone, launch, nil),
	} {
		require.ErrorIs(t, err, fault.ErrClosed, name)
	}
	require.ErrorIs(t, s.Copy(1, 1, -1), fault.ErrArgument)
	require.ErrorIs(t, s.Fill(1, 1, -1), fault.ErrArgument)
	require.ErrorIs(t, k.Launch(s, cuda.Launch{Grid: -1, Block: 1}, nil), fault.ErrArgument)
	_, err = e.Since(goneEvent)
	require.ErrorIs(t, err, fault.ErrClosed)
	require.Empty(t, f.calls())
	require.NoError(t, m.Close())
	require.NoError(t, g.Close())
	require.NoError(t, m.Close())
	require.NoError(t, g.Close())
	require.Equal(t, enter+"cuLibraryUnload"+leave+" "+enter+"cuGraphExecDestroy"+leave, f.calls())
	require.ErrorIs(t, k.Launch(s, launch, nil), fault.ErrClosed)
	require.ErrorIs(t, g.Launch(s), fault.ErrClosed)
	id, err := s.Capture()
	require.NoError(t, err)
	require.Zero(t, id)
	t.Setenv("UBCOLL_TEST_FAKE_CAPTURE", "1")
	id, err = s.Capture()
	require.NoError(t, err)
	require.EqualValues(t, 77, id)
	t.Setenv("UBCOLL_TEST_FAKE_CAPTURE", "2")
	_, err = s.Capture()
	require.ErrorIs(t, err, fault.ErrArgument)
	for i, want := range []string{"cuDeviceGet cuDevicePrimaryCtxRelease_v2", ""} {
		f.calls()
		require.NoError(t, c.Close())
		require.Equal(t, want, f.calls(), i)
	}
	_, err = c.Alloc(1)
	require.ErrorIs(t, err, fault.ErrClosed)
	require.ErrorIs(t, s.Sync(), fault.ErrClosed, "a stream of a closed context")
	require.ErrorIs(t, s.Close(), fault.ErrClosed)
	require.ErrorIs(t, f.context(t).EnablePeer(c), fault.ErrClosed)
	f.calls()
	require.ErrorIs(t, e.Sync(), fault.ErrClosed)
	require.Empty(t, f.calls())
}
