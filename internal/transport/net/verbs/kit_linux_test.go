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
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
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

const arenaBytes = 8 << 20

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
	h.arena, err = unix.Mmap(-1, 0, arenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(h.arena)) })
	h.memory = register.Memory{ID: lastID.Add(1), Generation: 1, Base: uintptr(at(h.arena)), Bytes: arenaBytes, Device: hw.Host, Kind: "adopted"}
	ref, err := h.cache.Register(h.memory, h.memory.Base, arenaBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ref.Close()) })
	return h
}

var lastID atomic.Uint64

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func (h *host) find(addr uintptr, n int) *register.Claim { return h.cache.FindLocal(addr, n, 0) }

// end is an end of a connection, and what came there.
type end struct {
	*Conn
	host   *host
	places map[uint32]*place
	region []byte // which writes go to
	call   [frame.Short]byte
	calls  []string
	told   []frame.Header
	theirs map[uint32]frame.Header // the last grant for each place
	failed error
	sent   atomic.Uint64
	put    uint64
}

// place is memory that is granted, and how much has come.
type place struct {
	memory []byte
	claim  *register.Claim
	seq    uint64
	came   int
	done   uint64
}

func (e *end) Place(h frame.Header) (unsafe.Pointer, bool, error) {
	switch x := e.places[h.Place]; {
	case e.failed != nil:
		return nil, false, e.failed
	case h.Kind == frame.Call:
		return at(e.call[:]), true, nil
	case h.Kind == frame.Write:
		return at(e.region[h.Offset:]), h.Place == 0, nil
	case x == nil || h.Seq != x.seq || x.came+int(h.Length) > len(x.memory):
		return nil, false, frame.Refused(h, "not granted")
	case h.Length == 0:
		return nil, true, nil
	default:
		return at(x.memory[x.came:]), true, nil
	}
}

func (e *end) Landed(h frame.Header) {
	switch {
	case h.Kind == frame.Call:
		e.calls = append(e.calls, string(e.call[:h.Length]))
	case h.Kind != frame.Write:
		e.landed(h.Place, int(h.Length), h.Kind == frame.Put)
	}
}

func (e *end) landed(place uint32, n int, last bool) {
	x := e.places[place]
	if x.came += n; last {
		x.done = x.seq
		if x.claim != nil {
			x.claim.Release()
			x.claim = nil
		}
	}
}

func (e *end) Wrote(index uint32, n int, last bool) error {
	e.landed(index, n, last)
	return nil
}

func (e *end) Told(h frame.Header) error {
	if h.Kind == frame.Grant {
		e.theirs[h.Place] = h
	} else {
		e.told = append(e.told, h)
	}
	return nil
}

// grant grants memory to the peer.
func (e *end) grant(i uint32, seq uint64, b []byte) {
	x := &place{memory: b, seq: seq}
	h := frame.Header{Kind: frame.Grant, Comm: 1, Place: i, Seq: seq, Length: uint64(len(b))}
	h.Landing, x.claim = e.Landing(at(b), len(b))
	h.Landing.Index = i
	e.places[i] = x
	e.Put(h, nil, nil)
}

// answer puts b to where the peer has granted.
func (e *end) answer(comm uint64, i uint32, b []byte) {
	g := e.theirs[i]
	delete(e.theirs, i)
	e.put++
	e.Put(frame.Header{Kind: frame.Put, Comm: comm, Place: i, Seq: g.Seq, Length: uint64(len(b)), Landing: g.Landing}, at(b), &e.sent)
}

// connect makes a connection between two hosts.
func connect(t testing.TB, ha, hb *host) (a, b *end) {
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
	ends := []*end{{Conn: ca, host: ha}, {Conn: cb, host: hb}}
	for _, e := range ends {
		e.places, e.theirs, e.region = map[uint32]*place{}, map[uint32]frame.Header{}, make([]byte, 1<<20)
		e.Begin(e)
		t.Cleanup(func() {
			e.Close()
			for _, x := range e.places {
				if x.claim != nil {
					x.claim.Release()
				}
			}
		})
	}
	return ends[0], ends[1]
}

// move moves both ends until f returns true.
func move(t testing.TB, a, b *end, f func() bool) {
	t.Helper()
	testkit.Eventually(t, func() bool {
		for _, e := range []*end{a, b} {
			_, err := e.Receive()
			require.NoError(t, err)
			e.Flush()
		}
		return f()
	})
}
