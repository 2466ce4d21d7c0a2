package mail

import (
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/hosts"
)

// between is a communicator's messages with ranks of other hosts. What two ranks need for theirs is made when one of them
// first calls for the other: a pair of the network, and a Box on each side that calls.
type between struct {
	eager   int                   // see eagerTo
	local   []int32               // by rank: its rank in the team, or -1
	boxes   []atomic.Pointer[Box] // by rank; nil: none yet
	pairs   *hosts.Pairs          // nil before Span
	bounces bool                  // all messages do
	beside  *Mail                 // the messages of host memory beside those that bounce

	making sync.Mutex // held by goroutines that make a box, and while the lanes are locked
	known  atomic.Pointer[[]*Box]
	closed bool
}

func newBetween(c *engine.Comm) *between {
	w := &between{eager: EagerFar, local: make([]int32, c.Size()), boxes: make([]atomic.Pointer[Box], c.Size())}
	for r := range w.local {
		w.local[r] = int32(c.Team().Index(r))
	}
	return w
}

// Span implements engine.Spanner.
func (m *Mail) Span(c hosts.PairsConfig) (err error) {
	if c.Places = placesFar; m.between.bounces {
		c.Places += bouncePlaces
	}
	c.Made, c.Last = newFar, m.lastFar
	m.between.pairs, err = hosts.OpenPairs(c)
	return err
}

// boxBetween is Box for a communicator of several hosts.
func (m *Mail) boxBetween(peer int) *Box {
	w := m.between
	if r := w.local[peer]; r >= 0 {
		return &m.boxes[r]
	}
	if b := w.boxes[peer].Load(); b != nil {
		return b
	}
	w.making.Lock()
	defer w.making.Unlock()
	if b := w.boxes[peer].Load(); b != nil {
		return b
	}
	b := &Box{Peer: peer, local: -1}
	b.Send.closed, b.Recv.closed = w.closed, w.closed
	var known []*Box
	if old := w.known.Load(); old != nil {
		known = append(known, *old...)
	}
	known = append(known, b)
	w.known.Store(&known)
	w.boxes[peer].Store(b)
	return b
}

// all yields all boxes that there are.
func (w *between) all() iter.Seq[*Box] {
	return func(yield func(*Box) bool) {
		if w == nil {
			return
		}
		known := w.known.Load()
		if known == nil {
			return
		}
		for _, b := range *known {
			if !yield(b) {
				return
			}
		}
	}
}

// lock keeps boxes from being made.
func (w *between) lock() {
	if w != nil {
		w.making.Lock()
	}
}

func (w *between) unlock() {
	if w != nil {
		w.making.Unlock()
	}
}

// closeBetween ends the pairs. The lanes are closed.
func (m *Mail) closeBetween() error {
	w := m.between
	if w == nil {
		return nil
	}
	w.closed = true
	w.making.Unlock()
	if w.pairs == nil {
		return nil
	}
	return w.pairs.Close()
}

// lastFar says how far this rank got with a peer.
func (m *Mail) lastFar(x *hosts.Pair) (l hosts.Last) {
	if b := m.between.boxes[x.Rank].Load(); b != nil {
		b.Send.Lock()
		l.Sent = b.Send.Seq
		b.Send.Unlock()
		b.Recv.Lock()
		l.Taken = b.Recv.Seq
		b.Recv.Unlock()
	}
	return l
}

// reach returns the pair of a peer on another host. recv says that this rank waits for the peer's messages.
func (m *Mail) reach(b *Box, recv bool) *far {
	if f := b.far.Load(); f != nil {
		return f
	}
	f := m.between.pairs.With(b.Peer, recv).Mine.(*far)
	b.far.Store(f)
	return f
}

// poll receives from a peer on another host.
func (b *Box) poll() {
	if b.local < 0 {
		if f := b.far.Load(); f != nil {
			f.pair.Poll()
		}
	}
}

// looksFar is how often a wait for another host looks before it does anything else: each look is a system call.
const looksFar = 16

// looks is how often a caller looks for b's messages that would look n times within a host.
func (m *Mail) looks(b *Box, n int) int {
	if b.local < 0 {
		return min(n, looksFar)
	}
	return n
}

// waitsFor is whom a wait for a peer is about, as in team.WaitState.
func (w *between) waitsFor(m *Mail, peer int) (local, far int) {
	if r := w.local[peer]; r >= 0 {
		return int(r), 0
	}
	return m.team.Rank(), peer + 1
}

// pollFar is poll for a wait for another host.
func (p *Patience) pollFar(m *Mail, msg *Message) error {
	err := m.Gated(p.w.Op, msg.Peer, func() *fault.Error { return m.team.Check(&p.w) })
	if err == nil {
		err = m.lostFar(msg, p.w.Behind)
	}
	if err != nil {
		return err
	}
	var x *hosts.Pair
	if f := m.Box(msg.Peer).far.Load(); f != nil {
		x = f.pair
	}
	m.between.pairs.Idle(&p.far, x, p.w.Several)
	return nil
}

// lostFar returns why a message will never be done, or nil. behind: it waits for a stream, which may be what ends that.
func (m *Mail) lostFar(msg *Message, behind bool) error {
	b := m.Box(msg.Peer)
	f := b.far.Load()
	if f == nil || behind {
		return nil
	}
	if last := f.pair.Last(); last != nil {
		end := last.Taken
		if msg.Recv {
			end = last.Sent
		}
		if n := msg.Number(); n > end {
			return hosts.Closed(msg.Peer)
		}
	}
	return m.between.pairs.Lost(f.pair)
}

// sever ends what the network may still do with the memory of messages to and from another host. The communicator is
// broken.
func (b *Box) sever() {
	if f := b.far.Load(); f != nil {
		f.pair.Close()
	}
}

// damagedFar is the error for what a correct peer never sends.
func (m *Mail) damagedFar(b *Box, what string, v uint64) error {
	return m.Error("mail", b.Peer, "", fmt.Errorf("what it has sent is damaged (%s %#x): %w", what, v, fault.ErrPeerLost))
}
