package mail

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// The limits of a message's forms.
const (
	SendSlots   = 8 // messages to one peer that the peer has not taken yet
	maxAnswers  = 2 * SendSlots
	inlineBytes = 112 // the longest message that travels in its slot
)

// EagerLimit is the size of the largest message within this host whose Send does not wait for its Recv, by the tuning
// table. Such messages are copied to the sender's shared memory.
func (m *Mail) EagerLimit() int { return m.eager }

// CopiedTo is the size of the largest message to a peer that may go without waiting for its Recv.
func (m *Mail) CopiedTo(peer int) int {
	if m.Box(peer).local < 0 {
		return MediumFar
	}
	return m.eager
}

// eagerTo is the size of the largest message to a peer whose Send does not wait for its Recv.
func (m *Mail) eagerTo(b *Box) int {
	if b.local < 0 {
		return m.between.eager
	}
	return m.eager
}

// eagerRoom is the size of an eager slot. There is less room for each peer the more ranks there are.
func eagerRoom(ranks int) int {
	room := tuning.MessageRoom()
	return room.EagerHost(ranks)
}

// slot announces a message. After Head comes the message itself or its location; a zero location means the sender's
// window.
type slot struct {
	Seq  atomic.Uint64 // number of the message to this peer, from 1; written last
	Head uint64        // see head
	data [inlineBytes]byte
}

// place is the message's location, which lies where a short message has its data.
func (s *slot) place() *mem.Location { return (*mem.Location)(unsafe.Pointer(&s.data)) }

// outbox is written by one rank, for one other rank. Each group of words has a pair of cache lines to itself. Counts
// that belong to one message also hold the low bits of its number, see word.
type outbox struct {
	Slots [SendSlots]slot

	// About the oldest message that the peer has not taken, if that is large: how many pieces this rank, its sender,
	// has begun, is done with, and has really copied.
	claimed, done, kept atomic.Uint64
	window              mem.Location // where unregistered messages pass through
	_                   [80]byte

	// As the receiver of the peer's messages: how many it has taken, and one byte each for the verdicts on the last
	// ones.
	taken, verdicts atomic.Uint64
	_               [112]byte

	// As the receiver of large messages, by number. There are more answers than slots, since a sender may still read an
	// old one after the receiver has taken all that was sent and says where it wants the next ones.
	answers [maxAnswers]answer
}

// answer says where the receiver wants message Seq. It is often written before that message is sent.
type answer struct {
	Seq    atomic.Uint64 // written after into, Type and Bytes
	into   mem.Location
	Type   uint64        // the element type, and exactly
	Bytes  uint64        // room at into
	pulled atomic.Uint64 // pieces that the receiver has begun, or has taken out of the window
	_      uint64
}

// The layout of an outbox, which peers read.
var (
	_ [128]struct{}                                   = [unsafe.Sizeof(slot{})]struct{}{}
	_ [SendSlots*128 + maxAnswers*64 + 2*128]struct{} = [unsafe.Sizeof(outbox{})]struct{}{}
)

// exactly is set in answer.Type if the message must have exactly Bytes bytes.
const exactly = 1 << 63

// fits reports whether msg, which is being sent, fits the receiver's answer.
func (a *answer) fits(msg *Message) bool {
	if a.Type&exactly != 0 && a.Bytes != uint64(msg.Bytes) {
		return false
	}
	return a.Type&^exactly == uint64(msg.Vec.Type) && a.Bytes >= uint64(msg.Bytes)
}

// AreaBytes is the size of a rank's outboxes.
func AreaBytes(ranks int) int {
	return ranks * (int(unsafe.Sizeof(outbox{})) + SendSlots*eagerRoom(ranks))
}

// Box is this rank's side of its messages with one peer, which may be this rank itself.
type Box struct {
	Peer              int // its rank in the communicator
	local             int // in the team; -1: it is on another host, and what follows Send and Recv is not used
	far               atomic.Pointer[far]
	Out, in           *outbox // this rank's for the peer, and the peer's for this rank
	outEager, inEager unsafe.Pointer
	Send, Recv        Lane

	outWindow  unsafe.Pointer // this rank's window for the peer, or nil; under Send's lock
	inWindow   unsafe.Pointer // the peer's window for this rank, and its location; under Recv's lock
	inWindowAt mem.Location
}

// growWindow makes b's window of n bytes, if there is none yet. The caller holds b.Send.
func (m *Mail) growWindow(b *Box, n int) error {
	if b.outWindow != nil {
		return nil
	}
	a, err := m.c.Domain().Heap.Alloc(n)
	if err != nil {
		return fmt.Errorf("staging memory for messages to rank %d: %w", b.Peer, err)
	}
	m.c.RetireAtClose(a)
	b.outWindow, b.Out.window = a.Ptr, a.At
	return nil
}

// window returns the peer's window of n bytes for this rank. The caller holds b.Recv, and has seen a message in it.
func (m *Mail) window(b *Box, n int) (unsafe.Pointer, error) {
	l := b.in.window
	if b.inWindow != nil && b.inWindowAt == l {
		return b.inWindow, nil
	}
	p, err := m.resolve("recv", b, l, n)
	if err == nil {
		b.inWindow, b.inWindowAt = p, l
	}
	return p, err
}

// resolve returns where n bytes of a peer's memory are in this process. It checks the location.
func (m *Mail) resolve(op string, b *Box, l mem.Location, n int) (unsafe.Pointer, error) {
	if b.Peer == m.rank {
		return b.outWindow, nil // a rank shows itself no other memory
	}
	return m.team.Resolve(op, b.local, l, n)
}
