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

// Message is one send or receive under way. It is the caller's until it is put into a lane, and again once it is Done.
type Message struct {
	Vec  team.Vec
	Buf  team.Buf
	Peer int
	Recv bool
	Done atomic.Bool
	Err  error
	Got  int // elements received

	exact  bool              // a receive that takes exactly as many elements as it has room for
	queued bool              // it has its place in the lane, but its stream has not reached it yet; under the lane's lock
	note   *team.MessageNote // how it went, to be filled in for a group; or nil

	// The transfer, under the lane's lock.
	seq      uint64
	Bytes    int
	piece    int // bytes
	pieces   int
	moved    int            // pieces done
	src, dst unsafe.Pointer // of the transfer, once known
	offered  bool
	started  bool
	answered bool
	ending   bool

	// acquire finds or makes the registration of the memory of a large message.
	acquire Acquire

	lane *Lane           // the lane that it is in
	held *mem.Allocation // its memory, kept from being freed until the message is done or abandoned
	next *Message
}

func (h *Message) kind() team.OpKind {
	if h.Recv {
		return team.KindRecv
	}
	return team.KindSend
}

// Number is h's number among the messages to or from its peer; 0 if another goroutine has the lane.
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

// hold keeps the memory of h, if the heap knows it, until release.
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

// Freed reports whether the memory of h has been freed since hold: it still exists, but its registrations are gone.
func (h *Message) Freed() bool { return h.held != nil && !h.held.Live() }

// quick reports whether a message of v may start and finish under its lane's lock without hold: a goroutine that frees
// v waits for that lock. The caller has the lane.
func (m *Mail) quick(v *team.Vec) bool {
	return v.Alloc == nil || v.Alloc.Heap() == m.c.Domain().Heap && v.Alloc.Live()
}

// release releases what h holds. The caller has the lane, if h is in one.
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

// unused has messages to use again.
var unused = sync.Pool{New: func() any { return new(Message) }}

// NewMessage returns a message that PutBack takes back.
func NewMessage(peer int, v *team.Vec, recv bool, acquire Acquire) *Message {
	h := unused.Get().(*Message)
	h.Set(peer, v, recv, acquire)
	return h
}

// PutBack takes back a message of NewMessage that is done.
func (h *Message) PutBack() { unused.Put(h) }

// Set makes h a new message that has not been started.
func (h *Message) Set(peer int, v *team.Vec, recv bool, acquire Acquire) {
	*h = Message{Peer: peer, Vec: *v, Recv: recv, Bytes: v.Bytes(), acquire: acquire}
}
