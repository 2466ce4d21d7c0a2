package ofi_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/ofi"
	"github.com/ubcoll/ubcoll/register"
)

// rails opens a domain and an endpoint of each provider that is here, of tcp at least.
func rails(t testing.TB) (all []ofi.Rail) {
	t.Helper()
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	for _, provider := range []string{"tcp;ofi_rxm", "sockets"} {
		infos, _, err := fabric.List(t.Context(), provider, "")
		require.NoError(t, err)
		for _, i := range infos {
			if i.Address.Is4() {
				all = append(all, rail(t, i))
				break
			}
		}
	}
	if len(all) == 0 {
		testkit.Missing(t, "libfabric", "libfabric has no provider tcp;ofi_rxm here")
	}
	return all
}

func rail(t testing.TB, i *fabric.Info) ofi.Rail {
	t.Helper()
	d, err := fabric.Open(i)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(), "a registration is left") })
	e, err := d.Endpoint(16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return ofi.Rail{Domain: d, Endpoint: e}
}

// open makes a backend of all rails.
func open(t testing.TB) (*ofi.Backend, []ofi.Rail) {
	t.Helper()
	r := rails(t)
	b := ofi.New(r, nil)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b, r
}

var lastID atomic.Uint64

func memory(t testing.TB, n, protection int) (register.Memory, []byte) {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, protection, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	return register.Memory{ID: lastID.Add(1), Generation: 1, Base: uintptr(unsafe.Pointer(unsafe.SliceData(m))), Bytes: n,
		Device: hw.Host, Kind: "adopted"}, m
}

const both = unix.PROT_READ | unix.PROT_WRITE

// write writes v from a new endpoint of rail's provider to the byte at offset of mr, with notification of the target. It
// returns what the writer was told.
func write(t *testing.T, r ofi.Rail, mr *fabric.MR, offset int, v byte) error {
	t.Helper()
	infos, _, err := fabric.List(t.Context(), r.Domain.Describe().Provider, r.Domain.Describe().Domain)
	require.NoError(t, err)
	d, err := fabric.Open(infos[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	e, err := d.Endpoint(4)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	m, bytes := memory(t, 4096, both)
	bytes[0] = v
	from, err := d.Register(m.Base, m.Bytes, fabric.Write, hw.Host, e)
	require.NoError(t, err)
	defer func() { require.NoError(t, from.Close()) }()
	peer, err := e.Insert(r.Endpoint.Name())
	require.NoError(t, err)
	w := []fabric.Work{{Op: fabric.OpWrite, Flags: fabric.Delivered, Local: from.Address(), Length: 1, Desc: from.Desc(), Peer: peer,
		Remote: mr.Remote(offset), Key: mr.Key()}}
	done := make([]fabric.Completion, 1)
	for begin := time.Now(); time.Since(begin) < 20*time.Second; {
		if len(w) > 0 {
			n, err := e.Post(w)
			if err != nil && !errors.Is(err, fabric.ErrAgain) {
				return err
			}
			w = w[n:]
		}
		n, err := e.Poll(done, 1)
		require.NoError(t, err)
		if n > 0 {
			return e.Failure(&done[0])
		}
		_, err = r.Endpoint.Poll(make([]fabric.Completion, 4), 1)
		require.NoError(t, err)
	}
	return errors.New("no completion")
}

// TestWhole: an allocation is registered whole with every domain, so that peers can write and not read there.
func TestWhole(t *testing.T) {
	b, rails := open(t)
	require.Equal(t, register.NET, b.Kind())
	m, bytes := memory(t, 3*4096, both)
	m.Base += 100
	m.Bytes -= 200
	h, err := b.Register(m)
	require.NoError(t, err)
	r := h.(*ofi.Region)
	require.Equal(t, []any{m, m.Base, m.Bytes}, []any{r.Memory(), r.Address(), r.Bytes()})
	require.ErrorIs(t, b.Close(), fault.ErrInUse)
	_, err = r.For(fabric.RemoteRead)
	require.ErrorIs(t, err, ofi.ErrAccess, "no operation reads")
	require.ErrorContains(t, err, "not for REMOTE_READ")
	mrs, err := r.For(fabric.Write | fabric.Read | fabric.RemoteWrite)
	require.NoError(t, err)
	require.Len(t, mrs, len(rails))
	for i, rail := range rails {
		require.Contains(t, r.String(), rail.Domain.Describe().Provider)
		require.NoError(t, write(t, rail, mrs[i], m.Bytes-1, byte(i+1)))
		require.Equal(t, byte(i+1), bytes[100+m.Bytes-1])
	}
	require.NoError(t, b.Deregister(m, r))
	for i, rail := range rails {
		require.Error(t, write(t, rail, mrs[i], 0, 99))
	}
	require.Zero(t, bytes[100])
}

// TestReadOnly: memory that this process may only read is for its own writes alone; nobody makes a provider write there.
func TestReadOnly(t *testing.T) {
	b, _ := open(t)
	m, _ := memory(t, 4096, unix.PROT_READ)
	h, err := b.Register(m)
	require.NoError(t, err)
	_, err = h.(*ofi.Region).For(fabric.Write)
	require.NoError(t, err)
	_, err = h.(*ofi.Region).For(fabric.RemoteWrite)
	require.ErrorIs(t, err, ofi.ErrAccess)
	require.NoError(t, b.Deregister(m, h))
	for _, access := range []fabric.Access{fabric.RemoteWrite, fabric.Read} {
		_, err = b.Exact(m, m.Base, 8, access)
		require.ErrorIs(t, err, fault.ErrArgument)
	}
	x, err := b.Exact(m, m.Base, 8, fabric.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, x.Close())
}

// TestExact: an export covers exactly its bytes, and closing it ends only its own access.
func TestExact(t *testing.T) {
	b, rails := open(t)
	m, bytes := memory(t, 3*4096, both)
	one, err := b.Exact(m, m.Base+4000, 300, fabric.RemoteWrite)
	require.NoError(t, err)
	two, err := b.Exact(m, m.Base+4100, 300, fabric.RemoteWrite)
	require.NoError(t, err)
	first, err := one.For(fabric.RemoteWrite)
	require.NoError(t, err)
	second, err := two.For(fabric.RemoteWrite)
	require.NoError(t, err)
	for i, rail := range rails {
		require.NoError(t, write(t, rail, first[i], 299, 7))
		require.EqualValues(t, 7, bytes[4299])
		for name, offset := range map[string]int{"before": -1, "behind": 300} {
			require.Error(t, write(t, rail, first[i], offset, 9), name)
		}
	}
	require.NoError(t, one.Close())
	require.ErrorIs(t, one.Close(), fault.ErrClosed)
	for i, rail := range rails {
		require.Error(t, write(t, rail, first[i], 0, 9))
		require.NoError(t, write(t, rail, second[i], 0, 8))
	}
	require.Equal(t, []byte{0, 0, 8, 0}, []byte{bytes[3999], bytes[4000], bytes[4100], bytes[4300]})
	require.NoError(t, two.Close())
	for name, c := range map[string]struct{ off, n int }{
		"nothing": {0, 0}, "less": {0, -1}, "before": {-1, 10}, "behind": {m.Bytes - 9, 10}, "far": {1 << 40, 1}, "longer": {0, m.Bytes + 1},
	} {
		_, err := b.Exact(m, m.Base+uintptr(c.off), c.n, fabric.RemoteWrite)
		require.ErrorIs(t, err, fault.ErrArgument, name)
	}
}

// TestAllOrNone: if one domain does not register memory, none has it.
func TestAllOrNone(t *testing.T) {
	all := rails(t)
	closed, err := fabric.Open(first(t))
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	b := ofi.New(append(all, ofi.Rail{Domain: closed}), nil)
	m, _ := memory(t, 4096, both)
	_, err = b.Register(m)
	require.ErrorIs(t, err, fault.ErrClosed)
	gpu := m
	gpu.Device = hw.CUDA(0)
	_, err = b.Register(gpu)
	require.ErrorIs(t, err, hw.ErrNotSupported)
	require.NoError(t, b.Close(), "nothing is registered")
	_, err = b.Register(m)
	require.ErrorIs(t, err, fault.ErrClosed)
	require.ErrorIs(t, b.Close(), fault.ErrClosed)
}

func first(t *testing.T) *fabric.Info {
	infos, _, err := fabric.List(t.Context(), "tcp;ofi_rxm", "")
	require.NoError(t, err)
	return infos[0]
}

// counting counts what the cache asks of the backend, which is its only way to libfabric.
type counting struct {
	*ofi.Backend
	calls atomic.Int64
}

func (c *counting) Register(m register.Memory) (any, error) {
	c.calls.Add(1)
	return c.Backend.Register(m)
}

func (c *counting) Deregister(m register.Memory, h any) error {
	c.calls.Add(1)
	return c.Backend.Deregister(m, h)
}

// TestCache: in the cache, memory is complete with NET, which names provider and domain; hits make no call into libfabric and
// allocate nothing.
func TestCache(t *testing.T) {
	b, rails := open(t)
	counted := &counting{Backend: b}
	m, _ := memory(t, 1<<20, both)
	c, err := register.New(register.Config{Backends: []register.Backend{counted}})
	require.NoError(t, err)
	ref, err := c.Register(m, m.Base+100, 1000)
	require.NoError(t, err)
	d := rails[0].Domain.Describe()
	require.Contains(t, c.Explain(m.Base+100, 1000), fmt.Sprintf("NET complete: %s %s", d.Provider, d.Domain))
	hit := func() {
		claim := c.FindLocal(m.Base+200, 10, 1)
		h, err := claim.Handle(register.NET)
		if err == nil {
			_, err = h.(*ofi.Region).For(fabric.RemoteWrite)
		}
		claim.Release()
		if err != nil {
			t.Error(err)
		}
	}
	require.Zero(t, testing.AllocsPerRun(1000, hit))
	for range 100 {
		again, err := c.Register(m, m.Base+50, 10)
		require.NoError(t, err)
		require.NoError(t, again.Close())
	}
	require.EqualValues(t, 1, counted.calls.Load())
	require.NoError(t, ref.Close())
	require.EqualValues(t, 2, counted.calls.Load())
	require.NoError(t, c.Close())
}
