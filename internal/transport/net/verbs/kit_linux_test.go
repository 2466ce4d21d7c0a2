package verbs

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/conntest"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// host is one process's NIC and its registered memory.
type host struct {
	nic    *NIC
	cache  *register.Cache
	arena  []byte
	memory register.Memory
}

// newHost makes a NIC, and memory that is registered with it. The end of the test checks that nothing is left.
func newHost(t testing.TB) *host {
	t.Helper()
	if p := ib.Have(); p.Err != nil {
		testkit.Missing(t, "verbs", p.Err)
	}
	b, err := mr.Open(mr.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	h := &host{}
	h.cache, err = register.New(register.Config{Backends: []register.Backend{b}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.cache.Close()) })
	path := ib.DefaultPath()
	path.Port = b.NICs()[0].Ports[0]
	h.nic, err = Open(b.NICs()[0].PD, 0, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.nic.Close()) })
	h.arena, err = unix.Mmap(-1, 0, conntest.ArenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(h.arena)) })
	h.memory = register.Memory{ID: lastID.Add(1), Generation: 1, Base: uintptr(at(h.arena)), Bytes: conntest.ArenaBytes, Device: hw.Host, Kind: "adopted"}
	ref, err := h.cache.Register(h.memory, h.memory.Base, conntest.ArenaBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ref.Close()) })
	return h
}

var lastID atomic.Uint64

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func (h *host) find(addr uintptr, n int) *register.Claim { return h.cache.FindLocal(addr, n, 0) }

// connect makes a connection between two hosts.
func connect(t testing.TB, ha, hb *host) (a, b *conntest.End, conn *Conn) {
	t.Helper()
	ca, at, err := New(ha.nic, ha.find, ib.RemoteWrite)
	require.NoError(t, err)
	cb, bt, err := New(hb.nic, hb.find, ib.RemoteWrite)
	require.NoError(t, err)
	require.NoError(t, ca.Connect(bt, "b"))
	require.NoError(t, cb.Connect(at, "a"))
	pinged := make(chan error)
	go func() { pinged <- ca.Ping(t.Context()) }()
	require.NoError(t, cb.Ping(t.Context()))
	require.NoError(t, <-pinged)
	begin := func(c *Conn) *conntest.End { return conntest.New(t, c, func(s conntest.Sink) { c.Begin(s) }) }
	return begin(ca), begin(cb), ca
}
