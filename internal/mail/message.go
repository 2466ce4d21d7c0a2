package mail

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Message is one send or receive on its way. It is the caller's until it is put into a lane, and again once it is Done.
type Message struct {
	Vec  team.Vec
	Buf  team.Buf
	Peer int
	Recv bool
	Done atomic.Bool
	Err  error
	Got  int // elements received

	exact  bool           // a receive takes as many elements as it has room for
	queued bool           // it has its place, on a stream that has not come to it yet; under the lane's lock
	told   *engine.OpInfo // how it went, for a group; or nil

	// The transfer, under the lane's lock.
	seq      uint64
	Bytes    int
	piece    int // bytes
	pieces   int
	moved    int            // pieces done
	src, dst unsafe.Pointer // of the transfer, as far as it is known
	offered  bool
	started  bool
	answered bool
	ending   bool

	// acquire finds or makes the registration of the memory of a large message.
	acquire Acquire

	lane *Lane           // that it is in
	held *mem.Allocation // the memory, which is not freed before the message is done or abandoned
	next *Message
}

func (h *Message) kind() team.OpKind {
	if h.Recv {
		return team.KindRecv
	}
	return team.KindSend
}

// Number is that of h among the messages to or from its peer, or 0 if somebody is at the lane.
func (h *Message) Number() uint64 {
	l := h.lane
	if !l.TryLock() {
		return 0
	}
	defer l.Unlock()
	if h.seq != 0 {
		return h.seq
	}
	n := l.Seq
	for w := l.waiting.Head; w != nil; w = w.next {
		if n++; w == h {
			return n
		}
	}
	return 0
}

// hold keeps the memory of h, as far as it is known whose it is, until release.
func (m *Mail) hold(h *Message) error {
	a := h.Vec.Alloc
	if a == nil {
		a = m.c.Domain().Heap.Lookup(uintptr(h.Vec.Ptr), h.Vec.Bytes())
	}
	if a == nil {
		return nil
	}
	if !a.Hold() {
		return fmt.Errorf("the buffer at %p has been freed: %w", h.Vec.Ptr, fault.ErrStale)
	}
	h.held = a
	return nil
}

// Freed reports whether the memory of h has been freed since it was held: it is there, and not registered any more.
func (h *Message) Freed() bool { return h.held != nil && !h.held.Live() }

// quick reports whether a message of v may come and go under the lock of its lane without being held: who frees v waits
// for that lock. The caller has the lane.
func (m *Mail) quick(v *team.Vec) bool {
	return v.Alloc == nil || v.Alloc.Heap() == m.c.Domain().Heap && v.Alloc.Live()
}

// release gives back what h holds. The caller has the lane, if h is in one.
func (h *Message) release() {
	if h.Buf.Claim != nil {
		h.Buf.Claim.Release()
		h.Buf.Claim = nil
	}
	if h.held != nil {
		h.held.Release()
		h.held = nil
	}
}

// Acquire finds or makes the registration of a large message's memory.
type Acquire func(*engine.Comm, *Message) error

// unused are messages that are not in use.
var unused = sync.Pool{New: func() any { return new(Message) }}

// NewMessage is a message that PutBack takes back.
func NewMessage(peer int, v *team.Vec, recv bool, acquire Acquire) *Message {
	h := unused.Get().(*Message)
	h.Set(peer, v, recv, acquire)
	return h
}

// PutBack is for a message of NewMessage that is done.
func (h *Message) PutBack() { unused.Put(h) }

// Set makes h one that has not been sent or received.
func (h *Message) Set(peer int, v *team.Vec, recv bool, acquire Acquire) {
	*h = Message{Peer: peer, Vec: *v, Recv: recv, Bytes: v.Bytes(), acquire: acquire}
}
