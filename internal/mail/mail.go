// Package mail has the messages of host memory of a communicator: boxes and their memory, and the protocol of both
// sides. Messages of device memory are package gpumail's.
package mail

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Mail is the messages of host memory of one communicator, which the ranks move themselves. For each peer of its host, a
// rank has an outbox that only it writes: for its messages to the peer, and for its answers to the peer's messages. A
// rank's outboxes lie behind its staging memory. Messages with ranks of other hosts are in between.
type Mail struct {
	c         *engine.Comm
	team      *team.Team
	rank      int
	eager     int      // see EagerLimit
	slotBytes int      // of an eager slot
	Looks     int      // see team.Looks
	boxes     []Box    // by the peer's rank in the team
	between   *between // nil if all ranks are on this host
	domain    *progress
	shut      bool // the lanes are locked
}

// New makes the messages of c.
func New(c *engine.Comm, sibling engine.Attachment) engine.Attachment {
	t := c.Team()
	m := newMail(c.Rank(), t.Size())
	m.c, m.team, m.Looks = c, t, t.Looks()
	m.eager = t.Tuning().Messages.EagerHost(t.Size())
	if c.SpansHosts() {
		m.between = newBetween(c)
		for r := range m.boxes {
			m.boxes[r].Peer = t.Name(r)
		}
	}
	if s, ok := sibling.(*Mail); ok {
		m.domain = s.domain
	}
	return m
}

// newMail makes the messages of a rank without its peers' memory. Those that fit into eager slots go eager.
func newMail(rank, ranks int) *Mail {
	room := eagerRoom(ranks)
	m := &Mail{rank: rank, eager: room, slotBytes: room, boxes: make([]Box, ranks), domain: &progress{}}
	for r := range m.boxes {
		m.boxes[r].Peer, m.boxes[r].local = r, r
	}
	return m
}

// Of returns the messages of c. If c has none, they say why: c has no ranks.
func Of(c *engine.Comm) *Mail {
	if m, ok := engine.Attached[*Mail](c); ok {
		return m
	}
	return &Mail{c: c, team: c.Team(), rank: c.Rank()}
}

// Size is the number of ranks that can exchange messages; 0 if the communicator has no messages.
func (m *Mail) Size() int {
	if m.between != nil {
		return len(m.between.boxes)
	}
	return len(m.boxes)
}

// Box returns the messages with a peer.
func (m *Mail) Box(peer int) *Box {
	if m.between != nil {
		return m.boxBetween(peer)
	}
	return &m.boxes[peer]
}

// AreaBytes implements engine.Attachment.
func (m *Mail) AreaBytes() int { return AreaBytes(len(m.boxes)) }

// Lay implements engine.Attachment: it sets the address of a rank's outboxes.
func (m *Mail) Lay(rank int, at unsafe.Pointer) {
	me := m.rank
	if m.between != nil {
		me = m.team.Rank()
	}
	if rank == me {
		for r := range m.boxes {
			b := &m.boxes[r]
			b.Out, b.outEager = m.outbox(at, r)
		}
		m.domain.all.Store(m, nil)
	}
	b := &m.boxes[rank]
	b.in, b.inEager = m.outbox(at, me)
}

// outbox returns the outbox for a rank of the team, and its eager slots, of a rank whose outboxes are at base.
func (m *Mail) outbox(base unsafe.Pointer, to int) (*outbox, unsafe.Pointer) {
	const size = int(unsafe.Sizeof(outbox{}))
	return (*outbox)(unsafe.Add(base, to*size)), unsafe.Add(base, len(m.boxes)*size+to*SendSlots*m.slotBytes)
}

// Advance implements engine.Advancer.
func (m *Mail) Advance() { m.domain.move() }

// Pass implements engine.Advancer.
func (m *Mail) Pass() { m.domain.pass() }

// Count implements engine.Attachment.
func (m *Mail) Count(*engine.Stats) {}

// Abort implements engine.Attachment.
func (m *Mail) Abort() {}

// Shut implements engine.Attachment: it locks all lanes.
func (m *Mail) Shut(broken bool) error {
	m.between.lock()
	var err error
	for l, r := range m.lanes() {
		l.Lock()
		if !l.idle() && !broken && err == nil {
			err = fmt.Errorf("a message from or to rank %d is on its way (its call, Request.Wait or "+
				"Stream.Sync ends it): %w", r, fault.ErrBusy)
		}
	}
	if m.shut = true; err != nil {
		m.Reopen()
	}
	return err
}

// Reopen implements engine.Attachment.
func (m *Mail) Reopen() {
	m.shut = false
	for l := range m.lanes() {
		l.Unlock()
	}
	m.between.unlock()
}

// Close implements engine.Attachment.
func (m *Mail) Close() error {
	if !m.shut { // the communicator was never opened
		if err := m.Shut(true); err != nil {
			return err
		}
	}
	if m.between != nil && m.c.Broken() != nil {
		for b := range m.between.all() {
			b.sever()
		}
	}
	for l := range m.lanes() {
		l.closed = true
		for _, q := range [2]*messageList{&l.Open, &l.waiting} {
			for q.Head != nil {
				q.pop().release()
			}
		}
		l.Unlock()
	}
	m.domain.leave(m)
	return m.closeBetween()
}

// Error makes an error about a message.
func (m *Mail) Error(op string, peer int, step string, err error) *fault.Error {
	return &fault.Error{Op: op, Rank: m.rank, Peer: peer, Host: m.c.Hostname(m.rank), Step: step, Err: err}
}

// Fail breaks the communicator with the error that ended a message, and returns the error that broke it.
func (m *Mail) Fail(op string, peer int, err error) error {
	e, ok := err.(*fault.Error)
	if !ok {
		e = m.Error(op, peer, "", err)
	}
	return m.c.FailOpen(e)
}

// damaged is the error for a value that a correct peer never writes.
func (m *Mail) damaged(peer int, what string, v uint64) error {
	return m.Error("mail", peer, "", fmt.Errorf("its mailbox is damaged (%s %#x): %w", what, v, fault.ErrPeerLost))
}

// WaitsForItself is the error for a send of n bytes to this rank itself; only up to most bytes are sent without
// waiting.
func WaitsForItself(n, most int) error {
	return fmt.Errorf(
		"%d bytes to this rank itself, more than %d, would wait for a Recv that comes later (use SendRecv or a Group): %w",
		n, most, fault.ErrArgument)
}

// usable returns why messages no longer move: the communicator broke. It is nil if they do.
func (m *Mail) usable() error {
	if e := m.c.Broken(); e != nil {
		return e
	}
	return nil
}

// Gated returns look's error; once Close frees what look reads, it returns why the communicator has ended instead.
func (m *Mail) Gated(op string, peer int, look func() *fault.Error) error {
	defer m.c.Polls.Leave()
	if !m.c.Polls.Enter() {
		if e := m.c.Broken(); e != nil {
			return e
		}
		return m.Error(op, peer, "", engine.ErrCommClosed)
	}
	if err := look(); err != nil {
		return err
	}
	return nil
}
