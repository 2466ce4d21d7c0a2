package mail

import "context"

// Do sends or receives h.
func (m *Mail) Do(ctx context.Context, op string, h *Message) (int, error) {
	l, advance := m.lane(h)
	if err := m.hold(h); err != nil {
		return 0, m.Error(op, h.Peer, "", err)
	}
	if err := l.Enter(); err != nil {
		h.release()
		return 0, m.Error(op, h.Peer, "", err)
	}
	h.lane = l
	l.waiting.push(h)
	err := m.usable() // since the call was checked: a rank that failed has taken its memory back
	b := m.Box(h.Peer)
	for i := m.Looks; i > 0 && err == nil && !h.Done.Load(); i-- {
		_, err = advance(m, b)
	}
	l.Unlock()
	ms := [1]*Message{h}
	if err != nil {
		err = m.abandon(ms[:], m.Fail(op, h.Peer, err))
	} else if !h.Done.Load() {
		err = m.Await(ctx, op, ms[:])
	}
	if err != nil {
		return 0, err
	}
	n, err := h.Got, h.Err
	h.PutBack()
	return n, err
}

// lane returns h's lane and the function that advances it.
func (m *Mail) lane(h *Message) (*Lane, func(*Mail, *Box) (bool, error)) {
	if h.Recv {
		return &m.Box(h.Peer).Recv, (*Mail).advanceRecv
	}
	return &m.Box(h.Peer).Send, (*Mail).advanceSend
}

// Start gives ms their places in the order. It fails if memory has been freed or the communicator closed meanwhile.
func (m *Mail) Start(op string, ms []*Message) error {
	for i, h := range ms {
		if err := m.hold(h); err != nil {
			letGoAll(ms[:i])
			return m.Error(op, h.Peer, "", err)
		}
	}
	for i, h := range ms {
		l, _ := m.lane(h)
		if err := l.Enter(); err != nil {
			letGoAll(ms[i:]) // those before were abandoned with their lanes
			return m.Error(op, h.Peer, "", err)
		}
		h.lane = l
		l.waiting.push(h)
		l.Unlock()
	}
	return nil
}

func letGoAll(ms []*Message) {
	for _, h := range ms {
		h.release()
	}
}

// Move moves all messages as far as they go without waiting.
func (m *Mail) Move() {
	for r := range len(m.boxes) {
		b := m.Box(r)
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
