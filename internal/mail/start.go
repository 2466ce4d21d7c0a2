package mail

import "context"

// Do sends or receives msg.
func (m *Mail) Do(ctx context.Context, op string, msg *Message) (int, error) {
	l, advance := m.lane(msg)
	if err := m.hold(msg); err != nil {
		return 0, m.Error(op, msg.Peer, "", err)
	}
	if err := l.Enter(); err != nil {
		msg.release()
		return 0, m.Error(op, msg.Peer, "", err)
	}
	msg.lane = l
	l.waiting.push(msg)
	err := m.usable() // since the call was checked: a rank that failed has taken its memory back
	b := m.Box(msg.Peer)
	for i := m.looks(b, m.Looks); i > 0 && err == nil && !msg.Done.Load(); i-- {
		b.poll()
		_, err = advance(m, b)
	}
	l.Unlock()
	ms := [1]*Message{msg}
	if err != nil {
		err = m.abandon(ms[:], m.Fail(op, msg.Peer, err))
	} else if !msg.Done.Load() {
		err = m.Await(ctx, op, ms[:])
	}
	if err != nil {
		return 0, err
	}
	n, err := msg.Got, msg.Err
	msg.PutBack()
	return n, err
}

// lane returns msg's lane and the function that advances it.
func (m *Mail) lane(msg *Message) (*Lane, func(*Mail, *Box) (bool, error)) {
	if msg.Recv {
		return &m.Box(msg.Peer).Recv, (*Mail).advanceRecv
	}
	return &m.Box(msg.Peer).Send, (*Mail).advanceSend
}

// Start gives ms their places in the order. It fails if memory has been freed or the communicator closed meanwhile.
func (m *Mail) Start(op string, ms []*Message) error {
	for i, msg := range ms {
		if msg.bounce != nil {
			continue
		}
		if err := m.hold(msg); err != nil {
			putBackAll(ms[:i])
			return m.Error(op, msg.Peer, "", err)
		}
	}
	for i, msg := range ms {
		l, _ := m.lane(msg)
		if err := l.Enter(); err != nil {
			putBackAll(ms[i:]) // those before were abandoned with their lanes
			return m.Error(op, msg.Peer, "", err)
		}
		msg.lane = l
		l.waiting.push(msg)
		l.Unlock()
	}
	return nil
}

func putBackAll(ms []*Message) {
	for _, msg := range ms {
		msg.release()
	}
}

// Move moves all messages as far as they go without waiting.
func (m *Mail) Move() {
	for b := range m.all() {
		m.moveLane(b, &b.Send, (*Mail).advanceSend)
		m.moveLane(b, &b.Recv, (*Mail).advanceRecv)
	}
}

func (m *Mail) moveLane(b *Box, l *Lane, advance func(*Mail, *Box) (bool, error)) {
	if !l.tryEnter() {
		return // another goroutine does it, or the communicator has been closed
	}
	moved, err := true, m.usable()
	for moved && err == nil {
		moved, err = advance(m, b)
	}
	l.Unlock()
	if err != nil {
		m.Fail("mail", b.Peer, err)
	}
}
