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
	landing  int    // places that were granted for it, between hosts
	until    uint64 // Endpoint.Sent that says that its data is sent
	left     int    // puts before that
	started  bool
	answered bool
	ending   bool

	// acquire finds or makes the registration of the memory of a large message.
	acquire Acquire

	bounce Bounce
	parts  int                  // of a long message that bounces; else 0
	passed int                  // of them, those that were sent, or have landed
	sentBy [bouncePlaces]uint64 // Endpoint.Sent that says that a part is sent

	lane *Lane           // the lane that it is in
	held *mem.Allocation // its memory, kept from being freed until the message is done or abandoned
	next *Message
}

func (m *Message) kind() team.OpKind {
	if m.Recv {
		return team.KindRecv
	}
	return team.KindSend
}

// Number is m's number among the messages to or from its peer; 0 if another goroutine has the lane.
func (m *Message) Number() uint64 {
	l := m.lane
	if !l.TryLock() {
		return 0
	}
	defer l.Unlock()
	if m.seq != 0 {
		return m.seq
	}
	n := l.Seq
	for w := l.waiting.Head; w != nil; w = w.next {
		if n++; w == m {
			return n
		}
	}
	return 0
}

// hold keeps the memory of msg, if the heap knows it, until release.
func (m *Mail) hold(msg *Message) error {
	a := msg.Vec.Alloc
	if a == nil {
		a = m.c.Domain().Heap.Lookup(uintptr(msg.Vec.Ptr), msg.Vec.Bytes())
	}
	if a == nil {
		return nil
	}
	if !a.Hold() {
		return fmt.Errorf("the buffer at %p has been freed: %w", msg.Vec.Ptr, fault.ErrStale)
	}
	msg.held = a
	return nil
}

// Freed reports whether the memory of m has been freed since hold: it still exists, but its registrations are gone.
func (m *Message) Freed() bool { return m.held != nil && !m.held.Live() }

// quick reports whether a message of v may start and finish under its lane's lock without hold: a goroutine that frees
// v waits for that lock. The caller has the lane.
func (m *Mail) quick(v *team.Vec) bool {
	return v.Alloc == nil || v.Alloc.Heap() == m.c.Domain().Heap && v.Alloc.Live()
}

// release releases what m holds. The caller has the lane, if m is in one.
func (m *Message) release() {
	if m.Buf.Claim != nil {
		m.Buf.Claim.Release()
		m.Buf.Claim = nil
	}
	if m.held != nil {
		m.held.Release()
		m.held = nil
	}
}

// Acquire finds or makes the registration of a large message's memory.
type Acquire func(*engine.Comm, *Message) error

// unused has messages to use again.
var unused = sync.Pool{New: func() any { return new(Message) }}

// NewMessage returns a message that PutBack takes back.
func NewMessage(peer int, v *team.Vec, recv bool, acquire Acquire) *Message {
	msg := unused.Get().(*Message)
	msg.Set(peer, v, recv, acquire)
	return msg
}

// PutBack takes back a message of NewMessage that is done.
func (m *Message) PutBack() { unused.Put(m) }

// Set makes m a new message that has not been started.
func (m *Message) Set(peer int, v *team.Vec, recv bool, acquire Acquire) {
	*m = Message{Peer: peer, Vec: *v, Recv: recv, Bytes: v.Bytes(), acquire: acquire}
}
