package mail

import (
	"context"
	"runtime"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// step advances the lane of msg once. It reports whether anything moved.
func (m *Mail) step(msg *Message, looks int) (moved bool, err error) {
	b := m.Box(msg.Peer)
	l, advance := m.lane(msg)
	if !l.tryEnter() {
		return false, nil // another goroutine does it, or has done it
	}
	defer l.Unlock()
	if err := m.usable(); err != nil {
		return false, err // a rank that failed has taken its memory back
	}
	for range m.looks(b, looks) {
		b.poll()
		if moved, err = advance(m, b); moved || err != nil {
			break
		}
	}
	return moved, err
}

// round moves each of ms on once. open is one that is not done yet, or nil; turn varies which one.
func (m *Mail) round(ms []*Message, looks, turn int) (open *Message, moved bool, err error) {
	for i := range ms {
		msg := ms[(i+turn)%len(ms)]
		if msg.Done.Load() {
			continue
		}
		one, err := m.step(msg, looks)
		if err != nil {
			return msg, false, err
		}
		moved = moved || one
		if !msg.Done.Load() && open == nil {
			open = msg
		}
	}
	return open, moved, nil
}

// Await moves ms until all are done. If it returns an error, the communicator is broken and ms are abandoned.
func (m *Mail) Await(ctx context.Context, op string, ms []*Message) error {
	return m.await(ctx, op, ms, nil)
}

// await is Await. copies, if not nil, moves on the copies of what bounces, and reports whether some are under way, which end
// soon; its error breaks the communicator.
func (m *Mail) await(ctx context.Context, op string, ms []*Message, copies func() (busy bool, err error)) error {
	var p Patience
	looks := m.Looks
	if len(ms) > 1 {
		looks = 1
	}
	for turn, idle := 0, 0; ; turn++ {
		open, moved, err := m.round(ms, looks, turn)
		if copies != nil && err == nil && open != nil {
			var busy bool
			if busy, err = copies(); busy && !moved && err == nil {
				runtime.Gosched()
				continue
			}
		}
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
		if idle += looks * len(ms); idle < m.Looks {
			continue
		}
		idle = 0
		p.w.Behind = m.behindQueued(ms)
		if err := p.poll(ctx, m, op, open, len(ms) > 1); err != nil {
			if m.arrivedAfterAll(ms) || open.Done.Load() {
				continue // an error that concerns the others comes again
			}
			return m.abandon(ms, m.Fail(op, open.Peer, m.hinted(open, err)))
		}
	}
}

// Test moves ms as far as they go without waiting, and reports whether all are done. All Tests of ms share p; call Over
// after the last one. If it returns an error, the communicator is broken and ms are abandoned.
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
			if err = p.look(m, op, open, len(ms) > 1); err == nil || m.arrivedAfterAll(ms) || open.Done.Load() {
				return false, nil
			}
		}
		return true, m.abandon(ms, m.Fail(op, open.Peer, err))
	}
}

// arrivedAfterAll moves ms for as long as they move: what a peer did before it ended counts. Unlike a wait, it does not
// leave a lane to the goroutine that has it.
func (m *Mail) arrivedAfterAll(ms []*Message) bool {
	for _, msg := range ms {
		l, advance := m.lane(msg)
		if l.Enter() != nil {
			return false
		}
		moved, err := true, m.usable()
		for moved && err == nil && !msg.Done.Load() {
			moved, err = advance(m, m.Box(msg.Peer))
		}
		l.Unlock()
		if !msg.Done.Load() {
			return false
		}
	}
	return true
}

// abandon takes back the messages' memory from a broken communicator. Once the goroutine that has a lane lets it go,
// nobody moves the lane's messages any more.
func (m *Mail) abandon(ms []*Message, err error) error {
	for _, msg := range ms {
		l, _ := m.lane(msg)
		l.Lock()
		if !msg.Done.Load() {
			m.Box(msg.Peer).sever()
			msg.release()
		}
		l.Unlock()
	}
	return err
}

// Patience is the state of a wait for messages. The zero value begins a wait.
type Patience struct {
	w    team.WaitState
	far  hosts.Wait // for another host
	turn int        // counts calls of Test, for round
}

// poll checks for abort, deadline and dead peers, and lets other goroutines run, as Wait does. Its error says why the
// wait for msg, and for others if several, is over; it has not broken the communicator yet.
func (p *Patience) poll(ctx context.Context, m *Mail, op string, msg *Message, several bool) error {
	p.about(ctx, m, op, msg, several)
	if p.w.Far != 0 {
		return p.pollFar(m, msg)
	}
	return m.Gated(op, msg.Peer, func() *fault.Error { return m.team.Poll(&p.w) })
}

// look is poll for callers that do not wait: it does not give the processor away.
func (p *Patience) look(m *Mail, op string, msg *Message, several bool) error {
	p.about(context.Background(), m, op, msg, several)
	if err := m.usable(); err != nil {
		return err
	}
	if p.w.Far != 0 {
		if err := m.lostFar(msg, p.w.Behind); err != nil {
			return err
		}
	}
	return m.Gated(op, msg.Peer, func() *fault.Error { return m.team.PollClock(&p.w) })
}

// about records what the wait is for.
func (p *Patience) about(ctx context.Context, m *Mail, op string, msg *Message, several bool) {
	w := &p.w
	w.Ctx, w.Op, w.Peer, w.Far, w.Kind, w.Item, w.Several = ctx, op, msg.Peer, 0, msg.kind(), msg, several
	if m.between != nil {
		w.Peer, w.Far = m.between.waitsFor(m, msg.Peer)
	}
}

// restart says that something has arrived: the deadline starts anew.
func (p *Patience) restart(m *Mail) {
	p.Over(m)
	p.w, p.far = team.WaitState{}, hosts.Wait{}
}

// behindQueued reports whether all unfinished ms wait behind messages of this rank whose streams have not reached them.
func (m *Mail) behindQueued(ms []*Message) bool {
	for _, msg := range ms {
		if msg.Done.Load() {
			continue
		}
		l, _ := m.lane(msg)
		l.Lock()
		behind := msg.seq == 0 && l.waiting.Head != nil && l.waiting.Head.queued
		l.Unlock()
		if !behind {
			return false
		}
	}
	return true
}

// Over ends the wait, after the last Test too.
func (p *Patience) Over(m *Mail) {
	if p.w.Published == 0 {
		return
	}
	if m.c.Polls.Enter() {
		m.team.EndWait(&p.w)
	}
	m.c.Polls.Leave()
}
