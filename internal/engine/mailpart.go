package engine

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/fault"
)

// mailPart is the messages of a communicator, as the engine sees them.
type mailPart struct {
	c    *Comm
	gpu  *gpuMail // nil without a device
	room *mailroom
	shut bool // the lanes are locked
}

// NewMail makes c's messages.
func NewMail(c *Comm, sibling Attachment) Attachment {
	m := &mailPart{c: c}
	if s, ok := sibling.(*mailPart); ok {
		m.room = s.room
	} else {
		m.room = &mailroom{}
	}
	c.mail = m
	c.mails = make([]Mail, c.size)
	return m
}

func (m *mailPart) AreaBytes() int { return MailBytes(m.c.size) }

// Lay sets where a rank's outboxes are.
func (m *mailPart) Lay(rank int, _ unsafe.Pointer) {
	c := m.c
	if rank == c.rank {
		for r := range c.mails {
			x := &c.mails[r]
			x.Peer = r
			x.Out, x.OutEager = c.outbox(c.rank, r)
		}
		m.room.all.Store(c, nil)
	}
	c.mails[rank].In, c.mails[rank].InEager = c.outbox(rank, c.rank)
}

func (m *mailPart) Advance()     { m.room.move() }
func (m *mailPart) Pass()        { m.room.pass() }
func (m *mailPart) Count(*Stats) {}
func (m *mailPart) Abort()       {}

func (m *mailPart) Shut(broken bool) error {
	c := m.c
	if c.device != nil {
		if err := m.gpu.shut(broken); err != nil {
			return err
		}
	}
	var err error
	for l, r := range c.lanes() {
		l.Lock()
		if !l.Idle() && !broken && err == nil {
			err = fmt.Errorf("a message from or to rank %d is on its way (its call, or Request.Wait, "+
				"ends it): %w", r, fault.ErrBusy)
		}
	}
	if m.shut = true; err != nil {
		m.Reopen()
	}
	return err
}

func (m *mailPart) Reopen() {
	m.shut = false
	for l := range m.c.lanes() {
		l.Unlock()
	}
	if m.c.device != nil {
		m.gpu.reopen(false)
	}
}

func (m *mailPart) Close() error {
	c := m.c
	for l := range c.lanes() {
		if !m.shut {
			l.Lock()
		}
		l.closed = true
		for _, q := range [2]*MessageList{&l.Open, &l.Waiting} {
			for q.Head != nil {
				q.Pop().LetGo()
			}
		}
		l.Unlock()
	}
	if c.device != nil {
		m.gpu.reopen(true)
	}
	m.room.leave(c)
	return nil
}
