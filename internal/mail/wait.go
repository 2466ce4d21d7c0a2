package mail

import (
	"context"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// step moves the lane of h on once. It reports whether anything moved.
func (m *Mail) step(h *Message, looks int) (moved bool, err error) {
	b := m.Box(h.Peer)
	l, advance := m.lane(h)
	if !l.tryEnter() {
		return false, nil // somebody else is at it, or has been
	}
	defer l.Unlock()
	if err := m.usable(); err != nil {
		return false, err // whoever failed has taken its memory back
	}
	for range looks {
		if moved, err = advance(m, b); moved || err != nil {
			break
		}
	}
	return moved, err
}

// round moves all of ms on once. open is one that is not done yet, or nil; which one changes with turn.
func (m *Mail) round(ms []*Message, looks, turn int) (open *Message, moved bool, err error) {
	for i := range ms {
		h := ms[(i+turn)%len(ms)]
		if h.Done.Load() {
			continue
		}
		one, err := m.step(h, looks)
		if err != nil {
			return h, false, err
		}
		moved = moved || one
		if !h.Done.Load() && open == nil {
			open = h
		}
	}
	return open, moved, nil
}

// Await moves ms on until all are done. Its error has broken the communicator, and ms are abandoned.
func (m *Mail) Await(ctx context.Context, op string, ms []*Message) error {
	var p Patience
	looks := m.looks
	if len(ms) > 1 {
		looks = 1
	}
	for turn, idle := 0, 0; ; turn++ {
		open, moved, err := m.round(ms, looks, turn)
		switch {
		case err != nil:
			return m.abandon(ms, m.Fail(op, open.Peer, err))
		case open == nil:
			p.Over(m)
			return nil
		case moved:
			p.restart(m)
			idle = 0
			continue
		}
		if idle += looks * len(ms); idle < m.looks {
			continue
		}
		idle = 0
		p.w.Behind = m.behindQueued(ms)
		if err := p.poll(ctx, m, op, open, len(ms) > 1); err != nil {
			if m.arrivedAfterAll(ms) {
				p.Over(m)
				return nil
			}
			return m.abandon(ms, m.Fail(op, open.Peer, err))
		}
	}
}

// Test moves ms on as far as they go at once, and reports whether all are done. p is that of all their Tests; Over is
// due after the last one. An error has broken the communicator, and ms are abandoned.
func (m *Mail) Test(p *Patience, op string, ms []*Message) (done bool, err error) {
	for {
		p.turn++
		open, moved, err := m.round(ms, 1, p.turn)
		if err == nil && open == nil {
			return true, nil
		}
		if err == nil && moved {
			p.restart(m)
			continue
		}
		if err == nil {
			p.w.Behind = m.behindQueued(ms)
			if err = p.look(m, op, open, len(ms) > 1); err == nil || m.arrivedAfterAll(ms) {
				return false, nil
			}
		}
		return true, m.abandon(ms, m.Fail(op, open.Peer, err))
	}
}

// arrivedAfterAll moves ms on for as long as they move: what a peer did before it went counts. Unlike who waits, it
// does not leave a lane to others who are at it.
func (m *Mail) arrivedAfterAll(ms []*Message) bool {
	for _, h := range ms {
		l, advance := m.lane(h)
		if l.Enter() != nil {
			return false
		}
		moved, err := true, m.usable()
		for moved && err == nil && !h.Done.Load() {
			moved, err = advance(m, m.Box(h.Peer))
		}
		l.Unlock()
		if !h.Done.Load() {
			return false
		}
	}
	return true
}

// abandon takes the memory of messages back from a broken communicator: nobody moves its messages any more, once
// whoever is at it has let go of the lane.
func (m *Mail) abandon(ms []*Message, err error) error {
	for _, h := range ms {
		l, _ := m.lane(h)
		l.Lock()
		if !h.Done.Load() {
			h.release()
		}
		l.Unlock()
	}
	return err
}

// Patience is the housekeeping of a wait for messages. The zero value begins one.
type Patience struct {
	w    team.WaitState
	turn int // of Test
}

// poll looks after abort, deadline, dead peers and other goroutines, as Wait does. Its error says why the wait for h,
// and perhaps several others, is over; it has not broken the communicator yet.
func (p *Patience) poll(ctx context.Context, m *Mail, op string, h *Message, several bool) error {
	p.about(ctx, op, h, several)
	return m.gated(op, h.Peer, func() *fault.Error { return m.team.Poll(&p.w) })
}

// look is poll for those who do not wait: it does not give the processor away.
func (p *Patience) look(m *Mail, op string, h *Message, several bool) error {
	p.about(context.Background(), op, h, several)
	if err := m.usable(); err != nil {
		return err
	}
	return m.gated(op, h.Peer, func() *fault.Error { return m.team.PollClock(&p.w) })
}

// about says what is waited for.
func (p *Patience) about(ctx context.Context, op string, h *Message, several bool) {
	w := &p.w
	w.Ctx, w.Op, w.Peer, w.Kind, w.Item, w.Several = ctx, op, h.Peer, h.kind(), h, several
}

// restart says that something has come: the deadline begins anew.
func (p *Patience) restart(m *Mail) {
	p.Over(m)
	p.w = team.WaitState{}
}

// behindQueued reports whether all of ms that are not done wait behind messages of this rank whose turns on their streams
// have not come.
func (m *Mail) behindQueued(ms []*Message) bool {
	for _, h := range ms {
		if h.Done.Load() {
			continue
		}
		l, _ := m.lane(h)
		l.Lock()
		behind := h.seq == 0 && l.waiting.Head != nil && l.waiting.Head.queued
		l.Unlock()
		if !behind {
			return false
		}
	}
	return true
}

// Over says that the wait, or the last Test, is over.
func (p *Patience) Over(m *Mail) {
	if p.w.Said == 0 {
		return
	}
	if m.c.Polls.Enter() {
		m.team.EndWait(&p.w)
	}
	m.c.Polls.Leave()
}
