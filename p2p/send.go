package p2p

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// room reports whether the peer's next slot is free. The caller holds the lane.
func room(c *engine.Comm, m *engine.Mail) (bool, error) {
	l := &m.Send
	if l.Seq-l.Taken < engine.MailSlots {
		return true, nil
	}
	_, err := refresh(c, m)
	return l.Seq-l.Taken < engine.MailSlots, err
}

// refresh looks at how many messages the peer has taken, and finishes those of them that were open. A message counts as
// taken only when its verdict has been read: the peer gives the next one in that place to a message for which there is
// no room until then.
func refresh(c *engine.Comm, m *engine.Mail) (finished bool, err error) {
	l := &m.Send
	t := m.In.Taken.Load()
	if t-l.Taken > l.Seq-l.Taken {
		return false, c.Damaged(m.Peer, "count of messages taken", t)
	}
	verdicts := m.In.Verdicts.Load()
	for h := l.Open.Head; h != nil && h.Seq <= t; h = l.Open.Head {
		l.Open.Pop()
		if err := sentence(uint8(verdicts>>(h.Seq%engine.MailSlots*8)), &h.Vec); err != nil {
			h.Err = c.MessageError("send", m.Peer, "", err)
		}
		finish(h)
		finished = true
	}
	l.Taken = t
	return finished, nil
}

// postSmall sends a message that travels at once. The caller holds the lane, and there is room.
func postSmall(c *engine.Comm, m *engine.Mail, v *team.Vec, n int) {
	seq := m.Send.Seq + 1
	s, way := &m.Out.Slots[seq%engine.MailSlots], wayInline
	if n <= engine.InlineBytes {
		cpu.Copy(unsafe.Pointer(&s.Data), v.Ptr, n, false)
	} else {
		way = wayEager
		cpu.Copy(eager(c, m.OutEager, seq), v.Ptr, n, false)
	}
	s.Head = head(way, v.Type, v.Len)
	publish(c, m, s, seq, n)
	if way == wayEager {
		spin.Demote(eager(c, m.OutEager, seq), n)
	}
	c.NoteSmall(seq, n)
}

// eager is the eager slot of a message.
func eager(c *engine.Comm, base unsafe.Pointer, seq uint64) unsafe.Pointer {
	return unsafe.Add(base, int(seq%engine.MailSlots)*c.EagerLimit())
}

const claimBytes = 1 << 10 // about what a core can have under way

// publish lets the peer see the message, and begins to fetch what a next one of the same size will be written to.
func publish(c *engine.Comm, m *engine.Mail, s *engine.Slot, seq uint64, n int) {
	m.Send.Seq = seq
	spin.Release(&s.Seq, seq)
	next := unsafe.Pointer(&m.Out.Slots[(seq+1)%engine.MailSlots])
	spin.Claim(next)
	switch {
	case n <= 48:
	case n <= engine.InlineBytes:
		spin.Claim(unsafe.Add(next, 64))
	case n <= c.EagerLimit():
		p := eager(c, m.OutEager, seq+1)
		for i := 0; i < min(n, claimBytes); i += 64 {
			spin.Claim(unsafe.Add(p, i))
		}
	}
}

// post sends h, for which there is room: at once, or as an open message that the peer must take.
func post(c *engine.Comm, m *engine.Mail, h *engine.Message) {
	l := &m.Send
	if h.Bytes <= c.EagerLimit() {
		postSmall(c, m, &h.Vec, h.Bytes)
		finish(h)
		return
	}
	if err := prepare(c, m, h); err != nil {
		h.Err = c.MessageError("send", m.Peer, "", err)
		finish(h)
		return
	}
	h.Seq = l.Seq + 1
	h.Piece, h.Pieces = pieces(h.Bytes, h.Buf.Direct())
	if l.Open.Head == nil {
		begin(m, h)
	}
	l.Open.Push(h)
	s := &m.Out.Slots[h.Seq%engine.MailSlots]
	s.Head = head(wayLarge, h.Vec.Type, h.Vec.Len)
	*s.Place() = mem.Location{}
	if h.Buf.Direct() {
		*s.Place() = h.Buf.At
	}
	publish(c, m, s, h.Seq, h.Bytes)
	if h.Buf.Direct() && h.Bytes < sharedBytes {
		spin.Demote(h.Vec.Ptr, h.Bytes)
	}
	note(c, h, h.Buf.Direct())
}

// note keeps how a large message went, whose source is direct or not.
func note(c *engine.Comm, h *engine.Message, direct bool) {
	k := team.KindSend
	if h.Recv {
		k = team.KindRecv
	}
	c.NoteMessage(k, h.Seq, h.Bytes, algorithm(h, direct),
		engine.BufferInfo{Used: true, Direct: h.Buf.Direct(), Why: h.Buf.Why})
}

// algorithm names the way of a large message.
func algorithm(h *engine.Message, direct bool) string {
	switch {
	case !direct:
		return "window"
	case h.Bytes < sharedBytes:
		return "pull"
	}
	return "shared copy"
}

// begin makes the counts of this rank's outbox those of h.
func begin(m *engine.Mail, h *engine.Message) {
	h.Started = true
	spin.Release(&m.Out.Kept, word(h.Seq, 0))
	spin.Release(&m.Out.Done, word(h.Seq, 0))
	spin.Release(&m.Out.Claimed, word(h.Seq, 0))
}

// finish gives h back to its caller.
func finish(h *engine.Message) {
	h.LetGo()
	h.Done.Store(true)
}

// advanceSend moves the messages to one peer on, by a piece at most. The caller holds the lane. An error is fatal.
func advanceSend(c *engine.Comm, m *engine.Mail) (moved bool, err error) {
	l := &m.Send
	if l.Open.Head != nil {
		if moved, err = refresh(c, m); err != nil {
			return moved, err
		}
	}
	for h := l.Waiting.Head; h != nil; h = l.Waiting.Head {
		free, err := room(c, m)
		if err != nil {
			return moved, err
		}
		if !free {
			break
		}
		l.Waiting.Pop()
		post(c, m, h)
		moved = true
	}
	h := l.Open.Head
	if h == nil {
		return moved, nil
	}
	if !h.Started {
		begin(m, h)
	}
	if h.Buf.Direct() {
		if h.Bytes < sharedBytes {
			return moved, nil // the receiver alone copies
		}
		helped, err := share(c, m, h)
		return moved || helped, err
	}
	staged, err := stage(c, m, h)
	return moved || staged, err
}

// answer is what the receiver of h says about it.
func answer(m *engine.Mail, h *engine.Message) *engine.Answer {
	return &m.In.Answers[h.Seq%engine.MailAnswers]
}

// answered reports whether the receiver has said where its buffer is, and that is one for this message.
func answered(c *engine.Comm, m *engine.Mail, h *engine.Message) (bool, error) {
	a := answer(m, h)
	if h.Answered || a.Seq.Load() != h.Seq || a.Type != uint64(h.Vec.Type) || a.Bytes < uint64(h.Bytes) {
		return h.Answered, nil
	}
	dst, err := c.ResolveAt(m.Peer, a.Into, h.Bytes)
	if err != nil {
		// The receiver may have pulled everything meanwhile, and freed its buffer.
		if gone, e := refresh(c, m); gone || e != nil {
			return false, e
		}
		return false, err
	}
	h.Dst, h.Answered = dst, true
	return true, nil
}

// copyPiece copies piece i of h from src to dst, which are those of the whole message.
func copyPiece(h *engine.Message, dst, src unsafe.Pointer, i int) {
	off := i * h.Piece
	cpu.Copy(unsafe.Add(dst, off), unsafe.Add(src, off), min(h.Piece, h.Bytes-off), false)
}

// share copies one of the last pieces of a message that the receiver copies from the first one on. Each side says which
// piece it takes and then looks again at what the other one has taken; where they meet, the sender gives in.
func share(c *engine.Comm, m *engine.Mail, h *engine.Message) (bool, error) {
	if h.Ending {
		return false, nil
	}
	ok, err := answered(c, m, h)
	if !ok || err != nil {
		return false, err
	}
	k := h.Next + 1
	if h.Ending = k > left(m, h); h.Ending {
		return false, nil
	}
	m.Out.Claimed.Store(word(h.Seq, k))
	if h.Ending = k > left(m, h); !h.Ending {
		copyPiece(h, h.Dst, h.Vec.Ptr, h.Pieces-k)
		h.Next = k
		spin.Release(&m.Out.Kept, word(h.Seq, k))
	}
	spin.Release(&m.Out.Done, word(h.Seq, k))
	return true, nil
}

// left is how many pieces the receiver has not taken: none if it is at another message, which is a later one, since it
// began with this one before it answered.
func left(m *engine.Mail, h *engine.Message) int {
	w := answer(m, h).Pulled.Load()
	if !of(w, h.Seq) {
		return 0
	}
	return h.Pieces - count(w, h.Seq)
}

// stage moves one piece of a message from unregistered memory: to the window, or, once that has been full and if the
// receiver is registered, to its destination.
func stage(c *engine.Comm, m *engine.Mail, h *engine.Message) (bool, error) {
	k := h.Next
	if k == h.Pieces {
		return false, nil
	}
	off := k * h.Piece
	src, n := unsafe.Add(h.Vec.Ptr, off), min(h.Piece, h.Bytes-off)
	if k >= windowPieces {
		pulled := count(answer(m, h).Pulled.Load(), h.Seq) // before the answer, which the receiver gives before it pulls
		switch ok, err := answered(c, m, h); {
		case err != nil || m.Send.Open.Head != h: // it is done, and its caller's
			return false, err
		case !ok && k-pulled >= windowPieces:
			return false, nil
		}
	}
	if h.Answered && k >= windowPieces {
		cpu.Copy(unsafe.Add(h.Dst, off), src, n, false)
	} else {
		w := unsafe.Add(m.OutWindow, windowAt(h, k))
		spin.ClaimAll(w, n)
		cpu.Copy(w, src, n, false)
	}
	h.Next = k + 1
	spin.Release(&m.Out.Done, word(h.Seq, k+1))
	return true, nil
}
