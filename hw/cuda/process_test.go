//go:build linux

package cuda_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() {
	children["vmm"] = func() error { return withOrder(childVMM) }
	children["ipc"] = func() error { return withOrder(childIPC) }
	children["fault"] = childFault
	children["destroyed"] = childDestroyed
}

// order is a task for a child: find Want in the memory, and leave Leave there.
type order struct {
	Device      int // the child's
	Size        int
	Want, Leave byte
	Handle      cuda.IPCHandle
}

// withOrder gives a child its order, a context and a stream.
func withOrder(do func(order, *cuda.Context, *cuda.Stream, *net.UnixConn) error) error {
	conn, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	c, err := cuda.Primary(hw.CUDA(o.Device))
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	return errors.Join(do(o, c, s, conn.(*net.UnixConn)), s.Close(), c.Close())
}

// check compares the memory with Want, and writes Leave.
func (o order) check(s *cuda.Stream, p cuda.Addr) error {
	got := make([]byte, o.Size)
	if err := s.Download(got, p); err != nil {
		return err
	}
	if i := slices.IndexFunc(got, func(b byte) bool { return b != o.Want }); i >= 0 {
		return fmt.Errorf("byte %d is %d, not %d", i, got[i], o.Want)
	}
	return testkit.InOrder(func() error { return s.Fill(p, o.Leave, o.Size) }, s.Sync)
}

func childVMM(o order, c *cuda.Context, s *cuda.Stream, conn *net.UnixConn) error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return fmt.Errorf("%d messages: %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	m, err := c.Import(fds[0])
	if err != nil {
		return err
	}
	p, err := c.Reserve(o.Size)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Close(fds[0]), testkit.InOrder(
		func() error { return c.Map(p, o.Size, m) },
		func() error { return c.Access(p, o.Size, c.Device()) })); err != nil {
		return err
	}
	return errors.Join(o.check(s, p), c.Unmap(p, o.Size), c.Unreserve(p, o.Size), c.Release(m))
}

func childIPC(o order, c *cuda.Context, s *cuda.Stream, _ *net.UnixConn) error {
	p, err := c.OpenIPC(o.Handle)
	if err != nil {
		return err
	}
	return errors.Join(o.check(s, p), c.CloseIPC(p))
}

// childFault breaks its context; all later calls must say so.
func childFault() error {
	c, err := cuda.Primary(hw.CUDA(0))
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	ptx, err := os.ReadFile("testdata/kernels.ptx")
	if err != nil {
		return err
	}
	m, err := c.LoadModule(string(ptx))
	if err != nil {
		return err
	}
	k, err := m.Function("add")
	if err != nil {
		return err
	}
	if err := k.Launch(s, cuda.Launch{Grid: 1, Block: 1}, params(addParams{64, 1, 1})); err != nil {
		return err
	}
	for range 2 {
		var e *cuda.Error
		if err := s.Sync(); !errors.As(err, &e) || e.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" {
			return fmt.Errorf("after a write to nowhere: %w", err)
		}
	}
	if _, err := c.Alloc(1); err == nil {
		return errors.New("an allocation in a broken context")
	}
	return nil
}

// childDestroyed goes on after its context was destroyed without its wrapper.
func childDestroyed() error {
	c, err := cuda.Primary(hw.CUDA(0))
	if err != nil {
		return err
	}
	other := *c
	if err := other.Close(); err != nil {
		return err
	}
	if _, err := c.Alloc(1); !errors.Is(err, fault.ErrClosed) {
		return fmt.Errorf("memory of a destroyed context: %w", err)
	}
	if _, err := c.NewStream(); !errors.Is(err, fault.ErrClosed) {
		return fmt.Errorf("a stream of a destroyed context: %w", err)
	}
	return nil
}

// child runs a child to its end, and sends it the descriptor fd over a Unix socket.
func child(t *testing.T, name string, o order, fd int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	mine, theirs := os.NewFile(uintptr(pair[0]), "mine"), os.NewFile(uintptr(pair[1]), "theirs")
	defer mine.Close()
	defer theirs.Close()
	cmd := testkit.Child(name, testkit.NoSleep)
	cmd.ExtraFiles = []*os.File{theirs}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	if fd >= 0 {
		require.NoError(t, unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0))
	}
	go func() {
		json.NewEncoder(in).Encode(o)
		in.Close()
	}()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// found checks what a child left in memory.
func found(t *testing.T, s *cuda.Stream, p cuda.Addr, n int, want byte) {
	t.Helper()
	require.NoError(t, order{Size: n, Want: want, Leave: want}.check(s, p))
}

func testVMM(t *testing.T, c *cuda.Context, device int) {
	s := stream(t, c)
	m, n := create(t, c)
	p := vmm(t, c, m, n)
	require.NoError(t, s.Fill(p, 11, n))
	require.NoError(t, s.Sync())
	fd, err := c.Export(m)
	require.NoError(t, err)
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags)
	child(t, "vmm", order{Device: device, Size: n, Want: 11, Leave: 22}, fd)
	found(t, s, p, n, 22)
	// A second export of the memory, by its address alone.
	again, err := c.Retain(p + 5)
	require.NoError(t, err)
	fd2, err := c.Export(again)
	require.NoError(t, err)
	defer unix.Close(fd2)
	require.NoError(t, c.Release(again))
	child(t, "vmm", order{Device: device, Size: n, Want: 22, Leave: 33}, fd2)
	found(t, s, p, n, 33)
}

func testIPC(t *testing.T, c *cuda.Context, device int) {
	s := stream(t, c)
	const n = 3 << 20
	p := alloc(t, c, n)
	require.NoError(t, s.Fill(p, 11, n))
	require.NoError(t, s.Sync())
	h, err := c.IPCHandle(p + 4096) // for the whole allocation
	require.NoError(t, err)
	child(t, "ipc", order{Device: device, Size: n, Want: 11, Leave: 22, Handle: h}, -1)
	found(t, s, p, n, 22)

	// Small allocations share a block of the driver's, but have different handles.
	small := []cuda.Addr{alloc(t, c, 1000), alloc(t, c, 1000), alloc(t, c, 1000)}
	for i, p := range small {
		require.NoError(t, s.Fill(p, byte(i), 1000))
	}
	require.NoError(t, s.Sync())
	h, err = c.IPCHandle(small[1] + 999)
	require.NoError(t, err)
	child(t, "ipc", order{Device: device, Size: 1000, Want: 1, Leave: 44, Handle: h}, -1)
	for i, want := range []byte{0, 44, 2} {
		found(t, s, small[i], 1000, want)
	}
}

func TestVMMInAnotherProcess(t *testing.T) { testVMM(t, gpu(t), 0) }

func TestIPCInAnotherProcess(t *testing.T) { testIPC(t, gpu(t), 0) }

func TestBrokenContext(t *testing.T) {
	gpu(t)
	child(t, "fault", order{}, -1)
}

func TestDestroyedContext(t *testing.T) {
	gpu(t)
	child(t, "destroyed", order{}, -1)
}

func TestTwoDevices(t *testing.T) {
	cs := gpus(t, 2)
	l, err := cuda.P2P(hw.CUDA(0), hw.CUDA(1))
	require.NoError(t, err)
	t.Logf("%+v", l)
	if !l.Access {
		t.Skip("the devices do not reach each other")
	}
	for range 2 {
		require.NoError(t, cs[0].EnablePeer(cs[1]))
		require.NoError(t, cs[1].EnablePeer(cs[0]))
	}
	s, s1, k := stream(t, cs[0]), stream(t, cs[1]), kernel(t, cs[0], "add")
	t.Run("kernel and copy", func(t *testing.T) {
		const n = 1 << 20
		there, here := alloc(t, cs[1], n), alloc(t, cs[0], n)
		require.NoError(t, s1.Fill(there, 1, n))
		require.NoError(t, s1.Sync())
		require.NoError(t, k.Launch(s, cuda.Launch{Grid: n / 1024, Block: 256}, params(addParams{there, n / 4, 0x01010101})))
		require.NoError(t, s.Copy(here, there, n))
		found(t, s, here, n, 2)
		found(t, s1, there, n, 2)
		e, err := cs[0].NewEvent(false) // an event orders streams of both devices
		require.NoError(t, err)
		require.NoError(t, s.Fill(here, 5, n))
		require.NoError(t, s.Copy(there, here, n))
		require.NoError(t, e.Record(s))
		require.NoError(t, s1.Wait(e))
		found(t, s1, there, n, 5)
		require.NoError(t, e.Close())
	})
	t.Run("mapped by both", func(t *testing.T) {
		m, n := create(t, cs[0])
		p := vmm(t, cs[0], m, n)
		require.NoError(t, cs[0].Access(p, n, hw.CUDA(1)))
		require.NoError(t, s1.Fill(p, 9, n))
		require.NoError(t, s1.Sync())
		found(t, s, p, n, 9)
	})
	t.Run("a stream of the other", func(t *testing.T) {
		_, err := cs[0].StreamFrom(s1.Handle())
		require.ErrorIs(t, err, fault.ErrArgument)
		require.Error(t, k.Launch(s1, cuda.Launch{Grid: 1, Block: 1}, params(addParams{})))
	})
	t.Run("vmm in another process", func(t *testing.T) { testVMM(t, cs[0], 1) })
	t.Run("ipc in another process", func(t *testing.T) { testIPC(t, cs[0], 1) })
}
