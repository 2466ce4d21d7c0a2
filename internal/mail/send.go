package mail

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/invariants"
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
	for msg := l.Open.Head; msg != nil && msg.seq <= t; msg = l.Open.Head {
		l.Open.pop()
		if err := verdictError(uint8(verdicts>>(msg.seq%SendSlots*8)), &msg.Vec); err != nil {
			msg.Err = m.Error("send", b.Peer, "", err)
		}
		msg.finish()
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
	return unsafe.Add(base, int(seq%SendSlots)*m.slotBytes)
}

const claimBytes = 1 << 10 // about what a core can have in flight

// publish makes the message visible to the peer, and prefetches the memory of a next message of the same size.
func (m *Mail) publish(b *Box, s *slot, seq uint64, n int) {
	if invariants.Enabled {
		b.checkNext(seq)
	}
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

// post sends msg, for which there is room: at once, or as an open message that the peer must take.
func (m *Mail) post(b *Box, msg *Message) {
	l := &b.Send
	if msg.Bytes <= m.eager {
		m.postSmall(b, &msg.Vec, msg.Bytes)
		msg.noteSmall(l.Seq, nil)
		msg.finish()
		return
	}
	if err := m.prepare(b, msg); err != nil {
		msg.Err = m.Error("send", b.Peer, "", err)
		msg.finish()
		return
	}
	msg.seq = l.Seq + 1
	msg.piece, msg.pieces = pieces(msg.Bytes, msg.Buf.Direct())
	if l.Open.Head == nil {
		b.begin(msg)
	}
	l.Open.push(msg)
	s := &b.Out.Slots[msg.seq%SendSlots]
	s.Head = head(formLarge, msg.Vec.Type, msg.Vec.Len)
	*s.place() = mem.Location{}
	if msg.Buf.Direct() {
		*s.place() = msg.Buf.At
	}
	m.publish(b, s, msg.seq, msg.Bytes)
	if msg.Buf.Direct() && msg.Bytes < sharedBytes {
		spin.Demote(msg.Vec.Ptr, msg.Bytes)
	}
	m.note(msg, msg.Buf.Direct(), nil)
}

// note records how a large message went. direct says whether its source is registered, and by how it went to another host, if
// it did.
func (m *Mail) note(msg *Message, direct bool, by *team.Link) {
	if msg.bounce != nil { // whoever made it does
		return
	}
	n := team.MessageNote{Kind: msg.kind(), Seq: msg.seq, Bytes: msg.Bytes, Algorithm: msg.algorithm(direct),
		Direct: msg.Buf.Direct() || by != nil, Why: msg.Buf.Why, Between: by}
	if by != nil && by.RDMA {
		n.Direct, n.Why = m.c.ByRDMA(&msg.Buf)
	}
	if msg.note != nil {
		*msg.note = n
	}
	m.c.NoteMessage(n.Info())
}

// noteSmall records, for a group, that m travelled with its announcement, and how to another host.
func (m *Message) noteSmall(seq uint64, by *team.Link) {
	if m.note != nil {
		*m.note = team.MessageNote{Kind: m.kind(), Seq: seq, Bytes: m.Bytes, Between: by}
	}
}

// algorithm names the algorithm of a large message.
func (m *Message) algorithm(direct bool) string {
	switch {
	case m.landing > 0 || m.until > 0 || m.parts > 0:
		return "rendezvous"
	case !direct:
		return "window"
	case m.Bytes < sharedBytes:
		return "pull"
	}
	return "shared copy"
}

// begin sets the counts of this rank's outbox to zero for msg.
func (b *Box) begin(msg *Message) {
	msg.started = true
	spin.Release(&b.Out.kept, word(msg.seq, 0))
	spin.Release(&b.Out.done, word(msg.seq, 0))
	spin.Release(&b.Out.claimed, word(msg.seq, 0))
}

// finish gives m back to its caller.
func (m *Message) finish() {
	m.release()
	m.Done.Store(true)
}

// advanceSend moves the messages to one peer on, by a piece at most. The caller holds the lane. An error is fatal.
func (m *Mail) advanceSend(b *Box) (moved bool, err error) {
	if b.local < 0 {
		return m.advanceSendFar(b)
	}
	l := &b.Send
	if l.Open.Head != nil {
		if moved, err = m.refresh(b); err != nil {
			return moved, err
		}
	}
	for msg := l.waiting.Head; msg != nil && !msg.queued; msg = l.waiting.Head {
		free, err := m.room(b)
		if err != nil {
			return moved, err
		}
		if !free {
			break
		}
		l.waiting.pop()
		m.post(b, msg)
		moved = true
	}
	msg := l.Open.Head
	if msg == nil {
		return moved, nil
	}
	if !msg.started {
		b.begin(msg)
	}
	if msg.Buf.Direct() {
		if msg.Bytes < sharedBytes {
			return moved, nil // the receiver alone copies
		}
		helped, err := m.share(b, msg)
		return moved || helped, err
	}
	staged, err := m.stage(b, msg)
	return moved || staged, err
}

// answer returns the receiver's answer about msg.
func (b *Box) answer(msg *Message) *answer {
	return &b.in.answers[msg.seq%maxAnswers]
}

// answered reports whether the receiver has said where its buffer is, and whether that fits this message.
func (m *Mail) answered(b *Box, msg *Message) (bool, error) {
	a := b.answer(msg)
	if msg.answered || a.Seq.Load() != msg.seq || !a.fits(msg) {
		return msg.answered, nil
	}
	dst, err := m.resolve("send", b, a.into, msg.Bytes)
	if err != nil {
		// The receiver may have pulled everything meanwhile and freed its buffer.
		if gone, e := m.refresh(b); gone || e != nil {
			return false, e
		}
		return false, err
	}
	msg.dst, msg.answered = dst, true
	return true, nil
}

// copyPiece copies piece i of m. src and dst are the beginnings of the whole message.
func (m *Message) copyPiece(dst, src unsafe.Pointer, i int) {
	off := i * m.piece
	cpu.Copy(unsafe.Add(dst, off), unsafe.Add(src, off), min(m.piece, m.Bytes-off), false)
}

// share copies one of the last pieces of a message that the receiver copies from the first on. Each side claims a
// piece, then looks again at the other side's claims. If both claimed the same piece, the sender skips it.
func (m *Mail) share(b *Box, msg *Message) (bool, error) {
	if msg.ending {
		return false, nil
	}
	ok, err := m.answered(b, msg)
	if !ok || err != nil {
		return false, err
	}
	k := msg.moved + 1
	if msg.ending = k > b.left(msg); msg.ending {
		return false, nil
	}
	b.Out.claimed.Store(word(msg.seq, k))
	if msg.ending = k > b.left(msg); !msg.ending {
		msg.copyPiece(msg.dst, msg.Vec.Ptr, msg.pieces-k)
		msg.moved = k
		spin.Release(&b.Out.kept, word(msg.seq, k))
	}
	spin.Release(&b.Out.done, word(msg.seq, k))
	return true, nil
}

// left returns how many pieces the receiver has not claimed. It is 0 if the receiver's count is of another message:
// that is a later one, since the receiver began with this one before it answered.
func (b *Box) left(msg *Message) int {
	w := b.answer(msg).pulled.Load()
	if !of(w, msg.seq) {
		return 0
	}
	return msg.pieces - count(w, msg.seq)
}

// stage moves one piece of a message from unregistered memory: to the window or, once the window has been filled and if
// the receiver's memory is registered, directly to its destination.
func (m *Mail) stage(b *Box, msg *Message) (bool, error) {
	k := msg.moved
	if k == msg.pieces {
		return false, nil
	}
	off := k * msg.piece
	src, n := unsafe.Add(msg.Vec.Ptr, off), min(msg.piece, msg.Bytes-off)
	if k >= windowPieces {
		pulled := count(b.answer(msg).pulled.Load(), msg.seq) // read before the answer: the receiver answers before it pulls
		switch ok, err := m.answered(b, msg); {
		case err != nil || b.Send.Open.Head != msg: // msg is done, and its caller's again
			return false, err
		case !ok && k-pulled >= windowPieces:
			return false, nil
		}
	}
	if msg.answered && k >= windowPieces {
		cpu.Copy(unsafe.Add(msg.dst, off), src, n, false)
	} else {
		w := unsafe.Add(b.outWindow, msg.windowAt(k))
		spin.ClaimAll(w, n)
		cpu.Copy(w, src, n, false)
	}
	msg.moved = k + 1
	spin.Release(&b.Out.done, word(msg.seq, k+1))
	return true, nil
}

// SendNow sends a message of n bytes that does not wait for its receive, if there is room and nothing waits before it;
// free says so. It takes the box, not the peer, else the compiler computes the box's address at every use.
func (m *Mail) SendNow(op string, b *Box, v *team.Vec, n int) (sent, free bool, err error) {
	if n > m.eagerTo(b) {
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
func (m *Mail) sendHeld(b *Box, v *team.Vec, n int, note *team.MessageNote) (sent, free bool, err error) {
	l := &b.Send
	if b.local < 0 {
		return m.sendFar(b, v, n, note)
	}
	free, err = m.room(b)
	free = free && l.idle()
	if sent = free && m.quick(v); sent {
		m.postSmall(b, v, n)
		if note != nil {
			note.Kind, note.Seq, note.Bytes = team.KindSend, l.Seq, n
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
func (m *Mail) prepare(b *Box, msg *Message) error {
	if err := tooLong(msg.Bytes); err != nil {
		return err
	}
	if err := msg.acquire(m.c, msg); err != nil || msg.Buf.Direct() {
		return err
	}
	return m.growWindow(b, windowPieces*windowPiece)
}

// tooLong is the error for a message that has too many bytes, or nil.
func tooLong(n int) error {
	if n > maxBytes {
		return fmt.Errorf("a message of %d bytes, more than %d: %w", n, maxBytes, fault.ErrLimit)
	}
	return nil
}
