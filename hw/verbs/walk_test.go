//go:build linux && cgo && (amd64 || arm64)

package verbs_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestWalk does what a user of RDMA does: register, exchange (address, rkey), post, complete, deregister.
func TestWalk(t *testing.T) {
	a, b := pair(t, config{inline: 32})
	src, dst := memory(t, 3<<20), memory(t, 3<<20)
	mine := a.register(t, src, verbs.LocalWrite)
	theirs := b.register(t, dst, verbs.LocalWrite|verbs.Remote)

	sizes := []int{1, 8, 31, 32, 33, 1023, 4096, 4097, 65536, 1 << 20, 3 << 20}
	t.Run("write", func(t *testing.T) {
		for i, n := range sizes {
			pattern(src[:n], byte(i))
			fill(dst, 0xee)
			require.NoError(t, a.do(t, work(verbs.Write, mine, theirs, n)), "%d bytes", n)
			require.Equal(t, src[:n], dst[:n], "%d bytes", n)
			if n < len(dst) {
				require.EqualValues(t, 0xee, dst[n], "%d bytes", n)
			}
		}
	})
	t.Run("read", func(t *testing.T) {
		for i, n := range sizes {
			pattern(dst[:n], byte(i+100))
			require.NoError(t, a.do(t, work(verbs.Read, mine, theirs, n)), "%d bytes", n)
			require.Equal(t, dst[:n], src[:n], "%d bytes", n)
		}
	})
	t.Run("send", func(t *testing.T) {
		for i, n := range sizes {
			pattern(src[:n], byte(i+50))
			_, err := b.qp.PostReceive(verbs.Receive{ID: 77, Local: theirs.Address(), Length: uint32(len(dst)), Key: theirs.LKey()})
			require.NoError(t, err)
			w := work(verbs.SendImmediate, mine, nil, n)
			w.Value = 0xdead0000 + uint32(i)
			require.NoError(t, a.do(t, w), "%d bytes", n)
			c := b.next(t)
			require.NoError(t, b.cq.Failure(&c))
			value, ok := c.Immediate()
			require.True(t, ok)
			require.Equal(t, []any{uint64(77), true, uint32(n), w.Value, b.qp.Number()},
				[]any{c.ID, c.Received(), c.Bytes, value, c.QP})
			require.Equal(t, src[:n], dst[:n], "%d bytes", n)
		}
	})
	t.Run("write with immediate", func(t *testing.T) {
		pattern(src[:5000], 9)
		_, err := b.qp.PostReceive(verbs.Receive{ID: 78})
		require.NoError(t, err)
		w := work(verbs.WriteImmediate, mine, theirs, 5000)
		w.Value = 42
		require.NoError(t, a.do(t, w))
		c := b.next(t)
		require.NoError(t, b.cq.Failure(&c))
		value, ok := c.Immediate()
		require.Equal(t, []any{uint64(78), uint32(42), true}, []any{c.ID, value, ok})
		require.Equal(t, src[:5000], dst[:5000])
	})
	t.Run("fetch and add", func(t *testing.T) {
		binary.NativeEndian.PutUint64(dst, 40)
		w := work(verbs.FetchAdd, mine, theirs, 8)
		w.Add = 2
		require.NoError(t, a.do(t, w))
		require.Equal(t, []uint64{40, 42}, []uint64{word(src), word(dst)})
		w = work(verbs.FetchAdd, mine, theirs, 8)
		w.Add = ^uint64(0)
		require.NoError(t, a.do(t, w))
		require.Equal(t, []uint64{42, 41}, []uint64{word(src), word(dst)})
	})
	t.Run("compare and swap", func(t *testing.T) {
		for _, c := range []struct{ is, want, swap, then uint64 }{{5, 5, 9, 9}, {5, 6, 9, 5}} {
			binary.NativeEndian.PutUint64(dst, c.is)
			w := work(verbs.CompareSwap, mine, theirs, 8)
			w.Add, w.Swap = c.want, c.swap
			require.NoError(t, a.do(t, w))
			require.Equal(t, []uint64{c.is, c.then}, []uint64{word(src), word(dst)})
		}
	})
	require.NoError(t, theirs.Close())
	require.ErrorIs(t, theirs.Close(), fault.ErrClosed)
	requireRemoteAccess(t, a.do(t, work(verbs.Write, mine, theirs, 8)))
}

func requireRemoteAccess(t *testing.T, err error) *verbs.CompletionError {
	t.Helper()
	var e *verbs.CompletionError
	require.ErrorAs(t, err, &e)
	require.Equal(t, verbs.RemoteAccess, e.Status, "%v", err)
	require.ErrorIs(t, err, fault.ErrStale)
	require.NotEmpty(t, e.Text)
	return e
}

// TestRefused: what the peer's memory does not allow fails by name at the initiator, and changes no memory.
func TestRefused(t *testing.T) {
	c := config{}
	a, b := pair(t, c)
	src, dst := memory(t, 64<<10), memory(t, 64<<10)
	mine := a.register(t, src, verbs.LocalWrite)
	open := b.register(t, dst[4096:8192], verbs.LocalWrite|verbs.Remote)
	readOnly := b.register(t, dst[8192:12288], verbs.RemoteRead)
	writeOnly := b.register(t, dst[12288:16384], verbs.LocalWrite|verbs.RemoteWrite)
	elsewhere := a.register(t, dst[16384:20480], verbs.LocalWrite|verbs.Remote) // of the other end's domain
	gone := b.register(t, dst[20480:24576], verbs.LocalWrite|verbs.Remote)
	require.NoError(t, gone.Close())

	at := func(op verbs.Op, r *verbs.MR, off, n int, key verbs.RKey) verbs.Work {
		w := work(op, mine, r, n)
		w.Remote += uint64(off)
		w.Peer = key
		return w
	}
	for _, c := range []struct {
		name string
		work verbs.Work
	}{
		{"next rkey", at(verbs.Write, open, 0, 8, open.RKey()+1<<8)},
		{"wrong rkey", at(verbs.Write, open, 0, 8, 0xdeadbeef)},
		{"beyond the end", at(verbs.Write, open, 4090, 8, open.RKey())},
		{"before the beginning", at(verbs.Write, open, -8, 8, open.RKey())},
		{"a read beyond the end", at(verbs.Read, open, 4090, 8, open.RKey())},
		{"a write of what may be read", at(verbs.Write, readOnly, 0, 8, readOnly.RKey())},
		{"an atomic on what may be read", at(verbs.FetchAdd, readOnly, 0, 8, readOnly.RKey())},
		{"a read of what may be written", at(verbs.Read, writeOnly, 0, 8, writeOnly.RKey())},
		{"an atomic on what may be written", at(verbs.CompareSwap, writeOnly, 0, 8, writeOnly.RKey())},
		{"another protection domain", at(verbs.Write, elsewhere, 0, 8, elsewhere.RKey())},
		{"deregistered", at(verbs.Write, gone, 0, 8, gone.RKey())},
		{"a large write beyond the end", at(verbs.Write, open, 0, 8192, open.RKey())},
	} {
		t.Run(c.name, func(t *testing.T) {
			pattern(src, 3)
			fill(dst, 0x55)
			before := append([]byte(nil), src...)
			e := requireRemoteAccess(t, a.do(t, c.work))
			require.Equal(t, []any{a.qp.Number(), "b", c.work.ID}, []any{e.QP, e.Peer, e.ID})
			require.NotNil(t, e.Work)
			require.Equal(t, c.work, *e.Work)
			require.Contains(t, e.Error(), c.work.Peer.String())
			testkit.Eventually(t, func() bool { // software RoCE tells of the failure just before
				state, err := a.qp.State()
				require.NoError(t, err)
				return state == verbs.StateError
			})
			again(t, a, b, config{})
			if c.name == "a large write beyond the end" {
				// A device may have placed the packets inside the region before it met the one outside.
				require.Equal(t, bytesOf(0x55, 4096), dst[:4096])
				require.Equal(t, bytesOf(0x55, len(dst)-8192), dst[8192:])
			} else {
				require.Equal(t, bytesOf(0x55, len(dst)), dst)
			}
			require.Equal(t, before, src)
		})
	}
	t.Run("wrong lkey", func(t *testing.T) {
		w := work(verbs.Write, mine, open, 4096)
		w.Key += 1 << 8
		fill(dst, 0x55)
		err := a.do(t, w)
		require.Error(t, err) // devices differ in the status: 2, 4 and 5 have been seen
		again(t, a, b, config{})
		require.Equal(t, bytesOf(0x55, len(dst)), dst)
	})
	t.Run("and then it works", func(t *testing.T) {
		require.NoError(t, a.do(t, work(verbs.Write, mine, open, 4096)))
		require.Equal(t, src[:4096], dst[4096:8192])
	})
}

func bytesOf(b byte, n int) []byte {
	m := make([]byte, n)
	fill(m, b)
	return m
}

// TestQueuePairAccess: the queue pair's own access bounds what its regions allow.
func TestQueuePairAccess(t *testing.T) {
	c := config{access: verbs.LocalWrite | verbs.RemoteRead}
	a, b := pair(t, c)
	src, dst := memory(t, 4096), memory(t, 4096)
	mine, theirs := a.register(t, src, verbs.LocalWrite), b.register(t, dst, verbs.LocalWrite|verbs.Remote)
	pattern(dst, 1)
	require.NoError(t, a.do(t, work(verbs.Read, mine, theirs, 4096)))
	require.Equal(t, dst, src)
	var e *verbs.CompletionError
	require.ErrorAs(t, a.do(t, work(verbs.Write, mine, theirs, 8)), &e)
	require.Contains(t, []verbs.Status{verbs.RemoteAccess, verbs.RemoteInvalid}, e.Status)
}

// TestRegister: memory that registers, and memory that is refused before the driver is asked or by the driver.
func TestRegister(t *testing.T) {
	d := device(t)
	e := newEnd(t, d, config{})
	m := memory(t, 16384)
	readOnly, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(readOnly)
	p := address(m)
	for _, c := range []struct {
		name    string
		address uintptr
		bytes   int
		access  verbs.Access
		is      error
		says    string
	}{
		{"whole pages", p, 8192, verbs.LocalWrite | verbs.Remote, nil, ""},
		{"an odd range", p + 13, 4099, verbs.LocalWrite | verbs.RemoteRead, nil, ""},
		{"one byte", p, 1, 0, nil, ""},
		{"relaxed ordering", p, 4096, verbs.LocalWrite | verbs.RelaxedOrdering, nil, ""},
		{"to be read", address(readOnly), 4096, verbs.RemoteRead, nil, ""},
		{"nothing", p, 0, 0, fault.ErrArgument, "nothing to register"},
		{"less than nothing", p, -1, 0, fault.ErrArgument, "nothing to register"},
		{"no address", 0, 4096, 0, fault.ErrArgument, "no memory is there"},
		{"around the end", ^uintptr(0) - 100, 4096, 0, fault.ErrArgument, "no memory is there"},
		{"remote write alone", p, 4096, verbs.RemoteWrite, fault.ErrArgument, "add LOCAL_WRITE"},
		{"remote atomic alone", p, 4096, verbs.RemoteAtomic, fault.ErrArgument, "add LOCAL_WRITE"},
		{"unknown flags", p, 4096, 1 << 30, fault.ErrArgument, "0x40000000"},
		{"not mapped", 4096, 4096, 0, fault.ErrArgument, "not mapped"},
		{"not to be written", address(readOnly), 4096, verbs.LocalWrite, fault.ErrArgument, "not as access wants it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mr, err := e.pd.Register(c.address, c.bytes, c.access)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
				require.ErrorContains(t, err, c.says)
				require.ErrorContains(t, err, d.Name())
				return
			}
			require.NoError(t, err)
			require.Equal(t, []any{uint64(c.address), c.bytes, c.access, e.pd},
				[]any{mr.Address(), mr.Bytes(), mr.Access(), mr.PD()})
			require.NoError(t, mr.Close())
		})
	}
	t.Run("on demand", func(t *testing.T) {
		mr, err := e.pd.Register(p, 4096, verbs.LocalWrite|verbs.OnDemand)
		if d.Limits().OnDemand {
			require.NoError(t, err)
			require.NoError(t, mr.Close())
			return
		}
		require.ErrorIs(t, err, hw.ErrNotSupported)
		require.ErrorContains(t, err, "leave out ON_DEMAND")
	})
	t.Run("dma-buf", func(t *testing.T) {
		fd, err := unix.MemfdCreate("no dma-buf", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		defer unix.Close(fd)
		_, err = e.pd.RegisterDMABuf(fd, 0, p, 4096, verbs.LocalWrite)
		require.Error(t, err)
		require.ErrorContains(t, err, fmt.Sprintf("dma-buf %d", fd))
	})
}

// TestOrder: an object does not close while an object made from it is open.
func TestOrder(t *testing.T) {
	d, pd, channel, cq, srq, qp, mr := oneOfEach(t)

	refused := func(close func() error, says ...string) {
		t.Helper()
		err := close()
		require.ErrorIs(t, err, fault.ErrInUse)
		for _, s := range says {
			require.ErrorContains(t, err, s)
		}
	}
	refused(d.Close, "protection domain", "completion channel", "completion queue")
	refused(pd.Close, "memory region", "queue pair", "shared receive queue")
	refused(cq.Close, "queue pair")
	refused(srq.Close, "queue pair")
	refused(channel.Close, "completion queue")
	for _, c := range []func() error{qp.Close, mr.Close, srq.Close, cq.Close, channel.Close, pd.Close, d.Close} {
		require.NoError(t, c())
		require.ErrorIs(t, c(), fault.ErrClosed)
	}
	_, err := d.AllocPD()
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = d.Port(1)
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = qp.Post(verbs.Work{})
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = qp.PostReceive(verbs.Receive{})
	require.True(t, errors.Is(err, fault.ErrClosed) || errors.Is(err, fault.ErrArgument))
	_, err = cq.Poll(make([]verbs.Completion, 1), 1)
	require.ErrorIs(t, err, fault.ErrClosed)
	_, err = pd.Register(address(memory(t, 4096)), 4096, 0)
	require.ErrorIs(t, err, fault.ErrClosed)
}
