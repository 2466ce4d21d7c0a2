package transporttest

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// server is a rank's Server at an endpoint: a peer may write to the memory that it has.
type server struct {
	t    testing.TB
	e    transport.Endpoint
	call func(b []byte) // serves a call; may be nil

	mu     sync.Mutex
	memory map[transport.Target]memory // their offsets are 0
	asked  map[transport.Target][]span // by Reach
	wants  func(offset uint64) bool    // which pieces it wants; nil: all
	calls  int
	over   bool // Called looks at no memory any more
}

func newServer(t testing.TB, e transport.Endpoint) *server {
	return &server{t: t, e: e, memory: map[transport.Target]memory{}, asked: map[transport.Target][]span{}}
}

// memory begins at an offset.
type memory struct {
	base uint64
	b    []byte
}

// span is a part of a write.
type span struct {
	offset  uint64
	n       int
	allowed bool
}

// Reach implements transport.Server. Others have time for something else before the bytes go where it says.
func (x *server) Reach(t transport.Target, n int) unsafe.Pointer {
	p := x.reach(t, n)
	for range n % 64 {
		runtime.Gosched()
	}
	return p
}

func (x *server) reach(t transport.Target, n int) unsafe.Pointer {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := transport.Target{Key: t.Key, Slot: t.Slot}
	m, allowed := x.memory[k]
	allowed = allowed && (x.wants == nil || x.wants(t.Offset))
	x.asked[k] = append(x.asked[k], span{t.Offset, n, allowed})
	switch at := t.Offset - m.base; {
	case !allowed:
		return nil
	case n < 1 || t.Offset < m.base || at > uint64(len(m.b)) || uint64(n) > uint64(len(m.b))-at:
		x.t.Errorf("%d bytes for offset %d, with %d bytes of memory for %d", n, t.Offset, len(m.b), m.base)
		return nil
	default:
		return unsafe.Pointer(&m.b[at])
	}
}

// Called implements transport.Server.
func (x *server) Called(b []byte) {
	if x.call != nil {
		x.call(b)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls++
}

// allow lets the peer write to b, which begins at an offset; nil: no longer.
func (x *server) allow(t transport.Target, base uint64, b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.Offset = 0
	if x.memory[t] = (memory{base, b}); b == nil {
		delete(x.memory, t)
	}
	x.asked[t] = nil
}

// spans are what Reach was asked for since the last allow.
func (x *server) spans(t transport.Target) []span {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.Offset = 0
	return slices.Clone(x.asked[t])
}

func (x *server) served() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.calls
}

// Denied implements transport.Server.
func (x *server) Denied(t transport.Target) { x.t.Errorf("%v is denied", t) }

// look checks something in Called, as long as the memory is not the test's again.
func (x *server) look(check func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		check()
	}
}

// end waits for what Called looks at, and keeps it from looking.
func (x *server) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
}

// servers are those of a communicator, by rank and peer.
type servers struct {
	mu  sync.Mutex
	all map[[2]int]*server
}

func (s *servers) of(rank, peer int) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[[2]int{rank, peer}]
}

// serve makes a communicator of all nodes, with servers. made prepares them, and may be nil.
func (j *job) serve(comm uint64, places int, made func(rank int, x *server)) *servers {
	j.t.Helper()
	s := &servers{all: map[[2]int]*server{}}
	for i, n := range j.Nodes {
		if j.closed[i] {
			continue
		}
		require.NoError(j.t, n.Join(transport.Comm{ID: comm, Places: places, Made: func(e transport.Endpoint) transport.Server {
			x := newServer(j.t, e)
			if made != nil {
				made(i, x)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.all[[2]int{i, e.Peer()}] = x
			return x
		}}))
	}
	return s
}

// called waits until a server has served so many calls.
func (j *job) called(x *server, calls int) {
	j.t.Helper()
	j.must("the call has come", func() bool { require.Nil(j.t, x.e.Err()); return x.served() >= calls })
	require.Equal(j.t, calls, x.served())
}

// number is a call that has a number.
func number(n int, more ...byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(n)), more...)
}

func numberOf(b []byte) int { return int(binary.LittleEndian.Uint64(b)) }
