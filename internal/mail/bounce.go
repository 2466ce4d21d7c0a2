package mail

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Messages between hosts of memory of devices bounce: their data pass through buffers of the host, which somebody else copies
// from and to. They have lanes of their own, beside those of messages of host memory, so that neither kind takes the other's place.
//
// A message of up to BouncePart bytes travels as one of host memory does, once its buffer is there. A longer one is
// announced. If the receiver expects it, it grants buffers for its parts one by one, as they become free, and the sender
// puts what it has in its own buffers by then. If RDMA devices reach the memory of the device, a part needs no buffer there; each end
// sees to that by itself.

// BouncePart is how many bytes a part of a long message has at most (see PartOf), and BounceAhead how many parts may be granted that
// have not landed.
const (
	BouncePart  = 256 << 10
	BounceAhead = bouncePlaces

	bouncePlaces = 4
)

// Bounce is the buffers through which a message passes. Whoever has the message's lane calls it, and it does not wait.
type Bounce interface {
	// Part returns where part i of a send is, or where a part of a receive may land; nil: not yet. device says that this is memory
	// of a device, as it is only if the message has several parts.
	Part(i int) (p unsafe.Pointer, device bool)
	// Buffers says that the network does not reach memory of the device: from part i on, Part returns buffers.
	Buffers(i int)
	// Passed says that part i of a message that has several was sent, or has landed.
	Passed(i int)
}

// NewBouncing makes the messages of c that bounce. They are with ranks of other hosts alone.
func NewBouncing(c *engine.Comm) *Mail {
	m := newMail(c.Rank(), 0)
	m.c, m.team, m.Looks = c, c.Team(), c.Team().Looks()
	m.between = newBetween(c)
	m.between.bounces = true
	for r := range m.between.local {
		m.between.local[r] = -1
	}
	return m
}

// NewBounced makes a message that takes exactly as many elements as k has. k.Vec is where its elements are in the end.
func NewBounced(k *Call, through Bounce, why string) *Message {
	v := k.Vec
	v.Ptr, v.Alloc = nil, nil
	msg := &Message{Peer: k.Peer, Vec: v, Recv: k.Recv, Bytes: v.Bytes(), bounce: through, exact: true, queued: true}
	if msg.Buf.Why = why; msg.Bytes > BouncePart {
		msg.parts = (msg.Bytes + BouncePart - 1) / BouncePart
	}
	return msg
}

// Beside says which messages of host memory the communicator has beside m, which bounce.
func (m *Mail) Beside(host *Mail) { m.between.beside = host }

// hinted adds to err, which ends the wait for msg, that a message of the other kind has come.
func (m *Mail) hinted(msg *Message, err error) error {
	if m.between == nil || m.between.beside == nil || !msg.Recv || !errors.Is(err, fault.ErrTimeout) ||
		!m.between.beside.Arrived(msg.Peer) {
		return err
	}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		hinted := *e
		hinted.Err = fmt.Errorf("no message of device memory has come, but a message of host memory: %w", e.Err)
		return &hinted
	}
	return err
}

// Begin lets messages go on that have their places. The caller then calls AwaitBounced.
func (m *Mail) Begin(ms []*Message) {
	for _, msg := range ms {
		msg.lane.Lock()
		msg.queued = false
		msg.lane.Unlock()
	}
}

// Withdraw takes back messages that have their places, and did not begin.
func (m *Mail) Withdraw(ms []*Message) {
	for _, msg := range ms {
		msg.lane.Lock()
		msg.lane.waiting.remove(msg)
		msg.lane.Unlock()
	}
}

// AwaitBounced is Await for messages that bounce: see await.
func (m *Mail) AwaitBounced(ctx context.Context, op string, ms []*Message, copies func() (busy bool, err error)) error {
	return m.await(ctx, op, ms, copies)
}

// Seq is the number of a message that is done among those of its lane.
func (m *Message) Seq() uint64 { return m.seq }

// LinkTo says how messages go to a peer.
func (m *Mail) LinkTo(peer int) *team.Link { return m.reach(m.Box(peer), false).pair.Link() }

// ready reports whether msg may travel. The caller holds the lane.
func (m *Message) ready() bool {
	if m.bounce == nil || m.parts > 0 {
		return true
	}
	m.Vec.Ptr, _ = m.bounce.Part(0)
	return m.Vec.Ptr != nil
}

// PartOf returns where part i of a message of so many bytes is, and its size. No part of several is so short that it would go in a
// message of the network's, which RDMA devices do not move: the last one has some of the one before.
func PartOf(bytes, i int) (off, n int) {
	const shortest = 64 << 10
	off, n = i*BouncePart, min(BouncePart, bytes-i*BouncePart)
	switch end := off + n; {
	case i > 0 && n < shortest:
		off, n = off-shortest, n+shortest
	case end < bytes && bytes-end < shortest:
		n -= shortest
	}
	return off, n
}

// partOf returns the size of part i of a long message.
func (m *Message) partOf(i int) int {
	_, n := PartOf(m.Bytes, i)
	return n
}

// partPlace is the place of part i of a message, and partKey its grant's sequence: the message's number and the part's.
func partPlace(i int) int { return bouncePlace + i%bouncePlaces }

func partKey(seq uint64, i int) uint64 { return seq<<20 | uint64(i+1) }

// sendParts moves a long message on that bounces: it sends the parts that are there, and were granted.
func (m *Mail) sendParts(b *Box, f *far, msg *Message) (moved bool, err error) {
	for msg.passed < msg.moved && msg.sentBy[msg.passed%bouncePlaces] <= f.pair.Sent() {
		msg.bounce.Passed(msg.passed)
		msg.passed++
		moved = true
	}
	for ; msg.moved < msg.parts && msg.moved < msg.passed+bouncePlaces; msg.moved++ {
		at, k, n := partPlace(msg.moved), partKey(msg.seq, msg.moved), msg.partOf(msg.moved)
		if f.pair.Granted(at).Load() != k {
			break
		}
		if room := f.pair.Room(at); room != n {
			return moved, m.damagedFar(b, "room for a part", uint64(room))
		}
		p, device := msg.bounce.Part(msg.moved)
		if p == nil {
			break
		}
		f.mu.Lock()
		if !device {
			f.pair.Put(at, k, p, n)
		} else if !f.pair.PutDevice(at, k, p, n) {
			f.mu.Unlock()
			msg.bounce.Buffers(msg.moved)
			break
		}
		msg.sentBy[msg.moved%bouncePlaces] = f.pair.Queued()
		f.mu.Unlock()
		msg.started, moved = true, true
	}
	if msg.passed == msg.parts {
		b.Send.Open.remove(msg)
		m.note(msg, false, f.pair.Link())
		msg.finish()
	}
	return moved, nil
}

// landParts moves a long message on that bounces: it grants the buffers that are free, and sees what has landed.
func (m *Mail) landParts(b *Box, f *far, msg *Message) (moved bool, err error) {
	for ; msg.passed < msg.moved; msg.passed++ {
		at := partPlace(msg.passed)
		if f.pair.Word(at).Load() != partKey(msg.seq, msg.passed) {
			break
		}
		if n := f.pair.Landed(at); n != msg.partOf(msg.passed) {
			return moved, m.damagedFar(b, "size of a part", uint64(n))
		}
		msg.bounce.Passed(msg.passed)
		moved = true
	}
	for ; msg.moved < msg.parts && msg.moved < msg.passed+bouncePlaces; msg.moved++ {
		p, device := msg.bounce.Part(msg.moved)
		if p == nil {
			break
		}
		at, k, n := partPlace(msg.moved), partKey(msg.seq, msg.moved), msg.partOf(msg.moved)
		f.mu.Lock()
		if !device {
			f.pair.Grant(at, k, p, n)
		} else if !f.pair.GrantDevice(at, k, p, n) {
			f.mu.Unlock()
			msg.bounce.Buffers(msg.moved)
			break
		}
		f.mu.Unlock()
		moved = true
	}
	if msg.passed == msg.parts {
		msg.Got = msg.Vec.Len
		b.Recv.Seq++
		f.brief = false
		b.Recv.waiting.pop()
		m.note(msg, false, f.pair.Link())
		msg.finish()
	}
	return moved, nil
}
