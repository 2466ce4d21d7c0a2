package p2p

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// step moves the lane of h on once. It reports whether anything moved.
func step(c *engine.Comm, h *engine.Message, looks int) (moved bool, err error) {
	m := c.Mail(h.Peer)
	l, advance := lane(c, h)
	if !l.TryEnter() {
		return false, nil // somebody else is at it, or has been
	}
	defer l.Unlock()
	if err := c.Usable(); err != nil {
		return false, err // whoever failed has taken its memory back
	}
	for range looks {
		if moved, err = advance(c, m); moved || err != nil {
			break
		}
	}
	return moved, err
}

// round moves all of ms on once. open is one that is not done yet, or nil; which one changes with turn.
func round(c *engine.Comm, ms []*engine.Message, looks, turn int) (open *engine.Message, moved bool, err error) {
	for i := range ms {
		h := ms[(i+turn)%len(ms)]
		if h.Done.Load() {
			continue
		}
		one, err := step(c, h, looks)
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

// await moves ms on until all are done. Its error has broken the communicator, and ms are abandoned.
func await(ctx context.Context, c *engine.Comm, op string, ms []*engine.Message) error {
	var p engine.Patience
	looks := c.Team().Looks()
	if len(ms) > 1 {
		looks = 1
	}
	for turn, idle := 0, 0; ; turn++ {
		open, moved, err := round(c, ms, looks, turn)
		switch {
		case err != nil:
			return abandon(c, ms, c.FailMessage(op, open.Peer, err))
		case open == nil:
			p.Over(c)
			return nil
		case moved:
			p.Restart(c)
			idle = 0
			continue
		}
		if idle += looks * len(ms); idle < c.Team().Looks() {
			continue
		}
		idle = 0
		if err := p.Poll(ctx, c, op, open, len(ms) > 1); err != nil {
			if arrivedAfterAll(c, ms) {
				p.Over(c)
				return nil
			}
			return abandon(c, ms, c.FailMessage(op, open.Peer, err))
		}
	}
}

// arrivedAfterAll moves ms on for as long as they move: what a peer did before it went counts.
func arrivedAfterAll(c *engine.Comm, ms []*engine.Message) bool {
	for {
		open, moved, err := round(c, ms, 1, 0)
		if err != nil || !moved {
			return err == nil && open == nil
		}
	}
}

// abandon takes the memory of messages back from a broken communicator: nobody moves its messages any more, once
// whoever is at it has let go of the lane.
func abandon(c *engine.Comm, ms []*engine.Message, err error) error {
	for _, h := range ms {
		l, _ := lane(c, h)
		l.Lock()
		if !h.Done.Load() {
			h.LetGo()
		}
		l.Unlock()
	}
	return err
}

func init() { engine.MoveMail = moveAll }

// moveAll moves all messages of c on as far as they go at once.
func moveAll(c *engine.Comm) {
	for r := range c.Size() {
		m := c.Mail(r)
		move(c, m, &m.Send, advanceSend)
		move(c, m, &m.Recv, advanceRecv)
	}
}

func move(c *engine.Comm, m *engine.Mail, l *engine.Lane, advance func(*engine.Comm, *engine.Mail) (bool, error)) {
	if !l.TryEnter() {
		return // somebody else is at it, or the communicator has been closed
	}
	moved, err := true, c.Usable()
	for moved && err == nil {
		moved, err = advance(c, m)
	}
	l.Unlock()
	if err != nil {
		c.FailMessage("mail", m.Peer, err)
	}
}
