package mail

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// room reports whether the peer's next slot is free. The caller holds the lane.
func (m *Mail) room(b *Box) (bool, error) {
	l := &b.Send
	if l.Seq-l.Taken < Slots {
		return true, nil
	}
	_, err := m.refresh(b)
	return l.Seq-l.Taken < Slots, err
}

// refresh looks at how many messages the peer has taken, and finishes those of them that were open. A message counts as
// taken only when its verdict has been read: the peer gives the next one in that place to a message for which there is
// no room until then.
func (m *Mail) refresh(b *Box) (finished bool, err error) {
	l := &b.Send
	t := b.In.Taken.Load()
	if t-l.Taken > l.Seq-l.Taken {
		return false, m.damaged(b.Peer, "count of messages taken", t)
	}
	verdicts := b.In.Verdicts.Load()
	for h := l.Open.Head; h != nil && h.Seq <= t; h = l.Open.Head {
		l.Open.Pop()
		if err := sentence(uint8(verdicts>>(h.Seq%Slots*8)), &h.Vec); err != nil {
			h.Err = m.Error("send", b.Peer, "", err)
		}
		h.finish()
		finished = true
	}
	l.Taken = t
	return finished, nil
}

// postSmall sends a message that travels at once. The caller holds the lane, and there is room.
func (m *Mail) postSmall(b *Box, v *team.Vec, n int) {
	seq := b.Send.Seq + 1
	s, way := &b.Out.Slots[seq%Slots], wayInline
	if n <= InlineBytes {
		cpu.Copy(unsafe.Pointer(&s.Data), v.Ptr, n, false)
	} else {
		way = wayEager
		cpu.Copy(m.eagerSlot(b.OutEager, seq), v.Ptr, n, false)
	}
	s.Head = head(way, v.Type, v.Len)
	m.publish(b, s, seq, n)
	if way == wayEager {
		spin.Demote(m.eagerSlot(b.OutEager, seq), n)
	}
	m.c.NoteSmall(seq, n)
}

// eagerSlot is the eager slot of a message.
func (m *Mail) eagerSlot(base unsafe.Pointer, seq uint64) unsafe.Pointer {
	return unsafe.Add(base, int(seq%Slots)*m.eager)
}

const claimBytes = 1 << 10 // about what a core can have under way

// publish lets the peer see the message, and begins to fetch what a next one of the same size will be written to.
func (m *Mail) publish(b *Box, s *Slot, seq uint64, n int) {
	b.Send.Seq = seq
	spin.Release(&s.Seq, seq)
	next := unsafe.Pointer(&b.Out.Slots[(seq+1)%Slots])
	spin.Claim(next)
	switch {
	case n <= 48:
	case n <= InlineBytes:
		spin.Claim(unsafe.Add(next, 64))
	case n <= m.eager:
		p := m.eagerSlot(b.OutEager, seq+1)
		for i := 0; i < min(n, claimBytes); i += 64 {
			spin.Claim(unsafe.Add(p, i))
		}
	}
}

// post sends h, for which there is room: at once, or as an open message that the peer must take.
func (m *Mail) post(b *Box, h *Message) {
	l := &b.Send
	if h.Bytes <= m.eager {
		m.postSmall(b, &h.Vec, h.Bytes)
		h.finish()
		return
	}
	if err := m.prepare(b, h); err != nil {
		h.Err = m.Error("send", b.Peer, "", err)
		h.finish()
		return
	}
	h.Seq = l.Seq + 1
	h.Piece, h.Pieces = pieces(h.Bytes, h.Buf.Direct())
	if l.Open.Head == nil {
		b.begin(h)
	}
	l.Open.Push(h)
	s := &b.Out.Slots[h.Seq%Slots]
	s.Head = head(wayLarge, h.Vec.Type, h.Vec.Len)
	*s.Place() = mem.Location{}
	if h.Buf.Direct() {
		*s.Place() = h.Buf.At
	}
	m.publish(b, s, h.Seq, h.Bytes)
	if h.Buf.Direct() && h.Bytes < sharedBytes {
		spin.Demote(h.Vec.Ptr, h.Bytes)
	}
	m.note(h, h.Buf.Direct())
}

// note keeps how a large message went, whose source is direct or not.
func (m *Mail) note(h *Message, direct bool) {
	k := team.KindSend
	if h.Recv {
		k = team.KindRecv
	}
	m.c.NoteMessage(k, h.Seq, h.Bytes, h.algorithm(direct),
		engine.BufferInfo{Used: true, Direct: h.Buf.Direct(), Why: h.Buf.Why})
}

// algorithm names the way of a large message.
func (h *Message) algorithm(direct bool) string {
	switch {
	case !direct:
		return "window"
	case h.Bytes < sharedBytes:
		return "pull"
	}
	return "shared copy"
}

// begin makes the counts of this rank's outbox those of h.
func (b *Box) begin(h *Message) {
	h.Started = true
	spin.Release(&b.Out.Kept, word(h.Seq, 0))
	spin.Release(&b.Out.Done, word(h.Seq, 0))
	spin.Release(&b.Out.Claimed, word(h.Seq, 0))
}

// finish gives h back to its caller.
func (h *Message) finish() {
	h.LetGo()
	h.Done.Store(true)
}

// advanceSend moves the messages to one peer on, by a piece at most. The caller holds the lane. An error is fatal.
func (m *Mail) advanceSend(b *Box) (moved bool, err error) {
	l := &b.Send
	if l.Open.Head != nil {
		if moved, err = m.refresh(b); err != nil {
			return moved, err
		}
	}
	for h := l.Waiting.Head; h != nil; h = l.Waiting.Head {
		free, err := m.room(b)
		if err != nil {
			return moved, err
		}
		if !free {
			break
		}
		l.Waiting.Pop()
		m.post(b, h)
		moved = true
	}
	h := l.Open.Head
	if h == nil {
		return moved, nil
	}
	if !h.Started {
		b.begin(h)
	}
	if h.Buf.Direct() {
		if h.Bytes < sharedBytes {
			return moved, nil // the receiver alone copies
		}
		helped, err := m.share(b, h)
		return moved || helped, err
	}
	staged, err := m.stage(b, h)
	return moved || staged, err
}

// answer is what the receiver of h says about it.
func (b *Box) answer(h *Message) *Answer {
	return &b.In.Answers[h.Seq%Answers]
}

// answered reports whether the receiver has said where its buffer is, and that is one for this message.
func (m *Mail) answered(b *Box, h *Message) (bool, error) {
	a := b.answer(h)
	if h.Answered || a.Seq.Load() != h.Seq || a.Type != uint64(h.Vec.Type) || a.Bytes < uint64(h.Bytes) {
		return h.Answered, nil
	}
	dst, err := m.resolve(b.Peer, a.Into, h.Bytes)
	if err != nil {
		// The receiver may have pulled everything meanwhile, and freed its buffer.
		if gone, e := m.refresh(b); gone || e != nil {
			return false, e
		}
		return false, err
	}
	h.Dst, h.Answered = dst, true
	return true, nil
}

// copyPiece copies piece i of h from src to dst, which are those of the whole message.
func (h *Message) copyPiece(dst, src unsafe.Pointer, i int) {
	off := i * h.Piece
	cpu.Copy(unsafe.Add(dst, off), unsafe.Add(src, off), min(h.Piece, h.Bytes-off), false)
}

// share copies one of the last pieces of a message that the receiver copies from the first one on. Each side says which
// piece it takes and then looks again at what the other one has taken; where they meet, the sender gives in.
func (m *Mail) share(b *Box, h *Message) (bool, error) {
	if h.Ending {
		return false, nil
	}
	ok, err := m.answered(b, h)
	if !ok || err != nil {
		return false, err
	}
	k := h.Next + 1
	if h.Ending = k > b.left(h); h.Ending {
		return false, nil
	}
	b.Out.Claimed.Store(word(h.Seq, k))
	if h.Ending = k > b.left(h); !h.Ending {
		h.copyPiece(h.Dst, h.Vec.Ptr, h.Pieces-k)
		h.Next = k
		spin.Release(&b.Out.Kept, word(h.Seq, k))
	}
	spin.Release(&b.Out.Done, word(h.Seq, k))
	return true, nil
}

// left is how many pieces the receiver has not taken: none if it is at another message, which is a later one, since it
// began with this one before it answered.
func (b *Box) left(h *Message) int {
	w := b.answer(h).Pulled.Load()
	if !of(w, h.Seq) {
		return 0
	}
	return h.Pieces - count(w, h.Seq)
}

// stage moves one piece of a message from unregistered memory: to the window, or, once that has been full and if the
// receiver is registered, to its destination.
func (m *Mail) stage(b *Box, h *Message) (bool, error) {
	k := h.Next
	if k == h.Pieces {
		return false, nil
	}
	off := k * h.Piece
	src, n := unsafe.Add(h.Vec.Ptr, off), min(h.Piece, h.Bytes-off)
	if k >= windowPieces {
		pulled := count(b.answer(h).Pulled.Load(), h.Seq) // before the answer, which the receiver gives before it pulls
		switch ok, err := m.answered(b, h); {
		case err != nil || b.Send.Open.Head != h: // it is done, and its caller's
			return false, err
		case !ok && k-pulled >= windowPieces:
			return false, nil
		}
	}
	if h.Answered && k >= windowPieces {
		cpu.Copy(unsafe.Add(h.Dst, off), src, n, false)
	} else {
		w := unsafe.Add(b.OutWindow, h.windowAt(k))
		spin.ClaimAll(w, n)
		cpu.Copy(w, src, n, false)
	}
	h.Next = k + 1
	spin.Release(&b.Out.Done, word(h.Seq, k+1))
	return true, nil
}

// SendNow sends a message of n bytes that does not wait for its receive, if there is room, and nothing is before it:
// free.
func (m *Mail) SendNow(op string, peer int, v *team.Vec, n int) (sent, free bool, err error) {
	if n > m.eager {
		return false, false, nil
	}
	b := &m.boxes[peer]
	l := &b.Send
	if err := l.Enter(); err != nil {
		return false, false, m.Error(op, peer, "", err)
	}
	free, err = m.room(b)
	free = free && l.Idle()
	if sent = free && m.quick(v); sent {
		m.postSmall(b, v, n)
	}
	l.Unlock()
	if err != nil {
		err = m.Fail(op, peer, err)
	}
	return sent, free, err
}

// SelfError is for a send of n bytes to this rank itself that would wait: SendNow has not sent it.
func (m *Mail) SelfError(n int) error {
	if n > m.eager {
		return m.Error("send", m.rank, "", waitsForItself(n, m.eager))
	}
	return m.Error("send", m.rank, "", fmt.Errorf(
		"%d messages to this rank itself have not been received yet (use SendRecv or a Group): %w", Slots, fault.ErrLimit))
}

// prepare makes ready what a large message is sent from: registered memory, or the window.
func (m *Mail) prepare(b *Box, h *Message) error {
	if h.Bytes > maxBytes {
		return fmt.Errorf("a message of %d bytes, more than %d: %w", h.Bytes, maxBytes, fault.ErrLimit)
	}
	if err := h.Acquire(m.c, h); err != nil || h.Buf.Direct() {
		return err
	}
	return m.growWindow(b, windowPieces*windowPiece)
}
