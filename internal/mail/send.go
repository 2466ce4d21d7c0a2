package mail

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// room reports whether the peer's next slot is free. The caller holds the lane.
func (m *Mail) room(b *Box) (bool, error) {
	l := &b.Send
	if l.Seq-l.taken < SendSlots {
		return true, nil
	}
	_, err := m.refresh(b)
	return l.Seq-l.taken < SendSlots, err
}

// refresh reads how many messages the peer has taken, and finishes those of them that were open. It reads their
// verdicts before it sets l.taken, which makes room for the messages whose verdicts overwrite these.
func (m *Mail) refresh(b *Box) (finished bool, err error) {
	l := &b.Send
	t := b.in.taken.Load()
	if t-l.taken > l.Seq-l.taken {
		return false, m.damaged(b.Peer, "count of messages taken", t)
	}
	verdicts := b.in.verdicts.Load()
	for h := l.Open.Head; h != nil && h.seq <= t; h = l.Open.Head {
		l.Open.pop()
		if err := sentence(uint8(verdicts>>(h.seq%SendSlots*8)), &h.Vec); err != nil {
			h.Err = m.Error("send", b.Peer, "", err)
		}
		h.finish()
		finished = true
	}
	l.taken = t
	return finished, nil
}

// postSmall sends a message that does not wait for its receive. The caller holds the lane, and there is room.
func (m *Mail) postSmall(b *Box, v *team.Vec, n int) {
	seq := b.Send.Seq + 1
	s, form := &b.Out.Slots[seq%SendSlots], formInline
	if n <= inlineBytes {
		cpu.Copy(unsafe.Pointer(&s.data), v.Ptr, n, false)
	} else {
		form = formEager
		cpu.Copy(m.eagerSlot(b.outEager, seq), v.Ptr, n, false)
	}
	s.Head = head(form, v.Type, v.Len)
	m.publish(b, s, seq, n)
	if form == formEager {
		spin.Demote(m.eagerSlot(b.outEager, seq), n)
	}
	m.c.NoteSmall(seq, n)
}

// eagerSlot returns the eager slot of a message.
func (m *Mail) eagerSlot(base unsafe.Pointer, seq uint64) unsafe.Pointer {
	return unsafe.Add(base, int(seq%SendSlots)*m.eager)
}

const claimBytes = 1 << 10 // about what a core can have in flight

// publish makes the message visible to the peer, and prefetches the memory of a next message of the same size.
func (m *Mail) publish(b *Box, s *slot, seq uint64, n int) {
	b.Send.Seq = seq
	spin.Release(&s.Seq, seq)
	next := unsafe.Pointer(&b.Out.Slots[(seq+1)%SendSlots])
	spin.Claim(next)
	switch {
	case n <= 48:
	case n <= inlineBytes:
		spin.Claim(unsafe.Add(next, 64))
	case n <= m.eager:
		p := m.eagerSlot(b.outEager, seq+1)
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
		h.noteSmall(l.Seq)
		h.finish()
		return
	}
	if err := m.prepare(b, h); err != nil {
		h.Err = m.Error("send", b.Peer, "", err)
		h.finish()
		return
	}
	h.seq = l.Seq + 1
	h.piece, h.pieces = pieces(h.Bytes, h.Buf.Direct())
	if l.Open.Head == nil {
		b.begin(h)
	}
	l.Open.push(h)
	s := &b.Out.Slots[h.seq%SendSlots]
	s.Head = head(formLarge, h.Vec.Type, h.Vec.Len)
	*s.place() = mem.Location{}
	if h.Buf.Direct() {
		*s.place() = h.Buf.At
	}
	m.publish(b, s, h.seq, h.Bytes)
	if h.Buf.Direct() && h.Bytes < sharedBytes {
		spin.Demote(h.Vec.Ptr, h.Bytes)
	}
	m.note(h, h.Buf.Direct())
}

// note records how a large message went. direct says whether its source is registered.
func (m *Mail) note(h *Message, direct bool) {
	n := team.MessageNote{Kind: h.kind(), Seq: h.seq, Bytes: h.Bytes, Algorithm: h.algorithm(direct),
		Direct: h.Buf.Direct(), Why: h.Buf.Why}
	if h.told != nil {
		*h.told = n
	}
	m.c.NoteMessage(n.Info())
}

// noteSmall records, for a group, that h travelled with its announcement.
func (h *Message) noteSmall(seq uint64) {
	if h.told != nil {
		*h.told = team.MessageNote{Kind: h.kind(), Seq: seq, Bytes: h.Bytes}
	}
}

// algorithm names the algorithm of a large message.
func (h *Message) algorithm(direct bool) string {
	switch {
	case !direct:
		return "window"
	case h.Bytes < sharedBytes:
		return "pull"
	}
	return "shared copy"
}

// begin sets the counts of this rank's outbox to zero for h.
func (b *Box) begin(h *Message) {
	h.started = true
	spin.Release(&b.Out.kept, word(h.seq, 0))
	spin.Release(&b.Out.done, word(h.seq, 0))
	spin.Release(&b.Out.claimed, word(h.seq, 0))
}

// finish gives h back to its caller.
func (h *Message) finish() {
	h.release()
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
	for h := l.waiting.Head; h != nil && !h.queued; h = l.waiting.Head {
		free, err := m.room(b)
		if err != nil {
			return moved, err
		}
		if !free {
			break
		}
		l.waiting.pop()
		m.post(b, h)
		moved = true
	}
	h := l.Open.Head
	if h == nil {
		return moved, nil
	}
	if !h.started {
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

// answer returns the receiver's answer about h.
func (b *Box) answer(h *Message) *answer {
	return &b.in.answers[h.seq%maxAnswers]
}

// answered reports whether the receiver has said where its buffer is, and whether that fits this message.
func (m *Mail) answered(b *Box, h *Message) (bool, error) {
	a := b.answer(h)
	if h.answered || a.Seq.Load() != h.seq || !a.fits(h) {
		return h.answered, nil
	}
	dst, err := m.resolve("send", b.Peer, a.into, h.Bytes)
	if err != nil {
		// The receiver may have pulled everything meanwhile and freed its buffer.
		if gone, e := m.refresh(b); gone || e != nil {
			return false, e
		}
		return false, err
	}
	h.dst, h.answered = dst, true
	return true, nil
}

// copyPiece copies piece i of h. src and dst are the beginnings of the whole message.
func (h *Message) copyPiece(dst, src unsafe.Pointer, i int) {
	off := i * h.piece
	cpu.Copy(unsafe.Add(dst, off), unsafe.Add(src, off), min(h.piece, h.Bytes-off), false)
}

// share copies one of the last pieces of a message that the receiver copies from the first on. Each side claims a
// piece, then looks again at the other side's claims. If both claimed the same piece, the sender skips it.
func (m *Mail) share(b *Box, h *Message) (bool, error) {
	if h.ending {
		return false, nil
	}
	ok, err := m.answered(b, h)
	if !ok || err != nil {
		return false, err
	}
	k := h.moved + 1
	if h.ending = k > b.left(h); h.ending {
		return false, nil
	}
	b.Out.claimed.Store(word(h.seq, k))
	if h.ending = k > b.left(h); !h.ending {
		h.copyPiece(h.dst, h.Vec.Ptr, h.pieces-k)
		h.moved = k
		spin.Release(&b.Out.kept, word(h.seq, k))
	}
	spin.Release(&b.Out.done, word(h.seq, k))
	return true, nil
}

// left returns how many pieces the receiver has not claimed. It is 0 if the receiver's count is of another message:
// that is a later one, since the receiver began with this one before it answered.
func (b *Box) left(h *Message) int {
	w := b.answer(h).pulled.Load()
	if !of(w, h.seq) {
		return 0
	}
	return h.pieces - count(w, h.seq)
}

// stage moves one piece of a message from unregistered memory: to the window or, once the window has been filled and if
// the receiver's memory is registered, directly to its destination.
func (m *Mail) stage(b *Box, h *Message) (bool, error) {
	k := h.moved
	if k == h.pieces {
		return false, nil
	}
	off := k * h.piece
	src, n := unsafe.Add(h.Vec.Ptr, off), min(h.piece, h.Bytes-off)
	if k >= windowPieces {
		pulled := count(b.answer(h).pulled.Load(), h.seq) // read before the answer: the receiver answers before it pulls
		switch ok, err := m.answered(b, h); {
		case err != nil || b.Send.Open.Head != h: // h is done, and its caller's again
			return false, err
		case !ok && k-pulled >= windowPieces:
			return false, nil
		}
	}
	if h.answered && k >= windowPieces {
		cpu.Copy(unsafe.Add(h.dst, off), src, n, false)
	} else {
		w := unsafe.Add(b.outWindow, h.windowAt(k))
		spin.ClaimAll(w, n)
		cpu.Copy(w, src, n, false)
	}
	h.moved = k + 1
	spin.Release(&b.Out.done, word(h.seq, k+1))
	return true, nil
}

// SendNow sends a message of n bytes that does not wait for its receive, if there is room and nothing waits before it;
// free says so. It takes the box, not the peer, else the compiler computes the box's address at every use.
func (m *Mail) SendNow(op string, b *Box, v *team.Vec, n int) (sent, free bool, err error) {
	if n > m.eager {
		return false, false, nil
	}
	l := &b.Send
	if err := l.Enter(); err != nil {
		return false, false, m.Error(op, b.Peer, "", err)
	}
	sent, free, err = m.sendHeld(b, v, n, nil)
	l.Unlock()
	if err != nil {
		err = m.Fail(op, b.Peer, err)
	}
	return sent, free, err
}

// sendHeld is SendNow for callers that hold the lane, with a message that is small enough. told, if not nil, is filled in.
// An error is fatal.
func (m *Mail) sendHeld(b *Box, v *team.Vec, n int, told *team.MessageNote) (sent, free bool, err error) {
	l := &b.Send
	free, err = m.room(b)
	free = free && l.idle()
	if sent = free && m.quick(v); sent {
		m.postSmall(b, v, n)
		if told != nil {
			told.Kind, told.Seq, told.Bytes = team.KindSend, l.Seq, n
		}
	}
	return sent, free, err
}

// SelfError returns the error for a send of n bytes to this rank itself that SendNow did not send: it would wait.
func (m *Mail) SelfError(n int) error {
	if n > m.eager {
		return m.Error("send", m.rank, "", WaitsForItself(n, m.eager))
	}
	return m.Error("send", m.rank, "", fmt.Errorf(
		"messages to this rank itself are before it, %d that have not been received yet or one that waits (use SendRecv "+
			"or a Group): %w", SendSlots, fault.ErrLimit))
}

// prepare prepares the source of a large message: its registration, or the window.
func (m *Mail) prepare(b *Box, h *Message) error {
	if h.Bytes > maxBytes {
		return fmt.Errorf("a message of %d bytes, more than %d: %w", h.Bytes, maxBytes, fault.ErrLimit)
	}
	if err := h.acquire(m.c, h); err != nil || h.Buf.Direct() {
		return err
	}
	return m.growWindow(b, windowPieces*windowPiece)
}
