package mail

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/invariants"
	"github.com/ubcoll/ubcoll/internal/team"
)

// arrived returns the peer's next message for this rank, or nil. The caller holds the lane.
func (b *Box) arrived() *slot {
	seq := b.Recv.Seq + 1
	if s := &b.in.Slots[seq%SendSlots]; s.Seq.Load() == seq {
		return s
	}
	return nil
}

// Arrived reports whether a message has come from a peer that no receive has taken yet. It is false while another goroutine
// has the lane.
func (m *Mail) Arrived(peer int) bool {
	b := m.Box(peer)
	if !b.Recv.TryLock() {
		return false
	}
	defer b.Recv.Unlock()
	if b.local < 0 {
		_, there, _ := m.arrivedFar(b)
		return there
	}
	return b.arrived() != nil
}

// take receives a message if that is quick: it came with its announcement, or is in registered memory and so short that
// the sender need not help. If done, the message is over, and err is the receiver's alone. If not done, err is fatal;
// nil means that the message is not a quick one.
func (m *Mail) take(b *Box, s *slot, h header, v *team.Vec, exact bool) (n int, done bool, err error) {
	place := *s.place()
	if h.form == formLarge && (place.Generation == 0 || h.bytes >= sharedBytes) {
		return 0, false, nil
	}
	verdict, err := verdictOn(h, v, exact)
	if err != nil {
		b.taken(verdict)
		return 0, true, m.Error("recv", b.Peer, "", err)
	}
	src := unsafe.Pointer(&s.data)
	switch h.form {
	case formEager:
		src = m.eagerSlot(b.inEager, b.Recv.Seq+1)
	case formLarge:
		if src, err = m.resolve("recv", b, place, h.bytes); err != nil {
			return 0, false, err
		}
	}
	cpu.Copy(v.Ptr, src, h.bytes, false)
	b.taken(verdictOK)
	return h.count, true, nil
}

// taken tells the sender that this rank is done with the next message.
func (b *Box) taken(verdict uint8) {
	l := &b.Recv
	l.Seq++
	if invariants.Enabled {
		b.checkTaken()
	}
	shift := l.Seq % SendSlots * 8
	old := b.Out.verdicts.Load()
	if v := old&^(0xff<<shift) | uint64(verdict)<<shift; v != old {
		spin.Release(&b.Out.verdicts, v)
	}
	spin.Release(&b.Out.taken, l.Seq)
}

// advanceRecv moves the first receive from one peer on, by a piece at most. The caller holds the lane. An error is
// fatal.
func (m *Mail) advanceRecv(b *Box) (moved bool, err error) {
	if b.local < 0 {
		return m.advanceRecvFar(b)
	}
	msg := b.Recv.waiting.Head
	if msg == nil || msg.queued {
		return false, nil
	}
	if !msg.started {
		s := b.arrived()
		if s == nil {
			if !msg.offered && msg.Bytes >= sharedBytes {
				err = m.offer(b, msg)
			}
			return false, err
		}
		return true, m.match(b, msg, s)
	}
	var done bool
	switch {
	case msg.ending:
		done = b.meet(msg)
		moved = done
	case msg.src != nil:
		moved, err = true, m.pull(b, msg)
	default:
		moved, done, err = m.drain(b, msg)
	}
	if done && err == nil {
		b.Recv.waiting.pop()
		b.taken(verdictOK)
		m.note(msg, msg.src != nil, nil)
		msg.finish()
	}
	return moved, err
}

// match starts to receive the message that belongs to the first receive.
func (m *Mail) match(b *Box, msg *Message, s *slot) error {
	hd, err := m.readHead(b, s.Head)
	if err != nil {
		return err
	}
	if n, done, err := m.take(b, s, hd, &msg.Vec, msg.exact); done || err != nil {
		if done {
			msg.Got, msg.Err = n, err
			msg.noteSmall(b.Recv.Seq, nil)
			b.Recv.waiting.pop()
			msg.finish()
			err = nil
		}
		return err
	}
	if verdict, err := verdictOn(hd, &msg.Vec, msg.exact); err != nil {
		msg.Err = m.Error("recv", b.Peer, "", err)
		b.Recv.waiting.pop()
		b.taken(verdict)
		msg.finish()
		return nil
	}
	direct := s.place().Generation != 0
	msg.seq = b.Recv.Seq + 1
	n, number := pieces(hd.bytes, direct)
	if !msg.offered && (direct || number > windowPieces) { // else all of it fits into the window
		if err := m.offer(b, msg); err != nil {
			return err
		}
	} else if !msg.offered {
		spin.Release(&b.reply(msg).pulled, word(msg.seq, 0))
		msg.Buf.Why = "what fits into the sender's window goes through it"
	}
	msg.Got, msg.Bytes, msg.piece, msg.pieces, msg.started = hd.count, hd.bytes, n, number, true
	msg.answered = msg.Buf.Direct()
	if direct {
		msg.src, err = m.resolve("recv", b, *s.place(), msg.Bytes)
	}
	return err
}

// offer lets the sender of the next message write directly to msg's memory, if that is registered.
func (m *Mail) offer(b *Box, msg *Message) error {
	msg.seq, msg.offered = b.Recv.Seq+1, true
	a := b.reply(msg)
	spin.Release(&a.pulled, word(msg.seq, 0))
	if err := msg.acquire(m.c, msg); err != nil || !msg.Buf.Direct() {
		return err
	}
	a.into, a.Type, a.Bytes = msg.Buf.At, uint64(msg.Vec.Type), uint64(msg.Vec.Bytes())
	if msg.exact {
		a.Type |= exactly
	}
	spin.Release(&a.Seq, msg.seq)
	return nil
}

// reply is where this rank, the receiver of msg, answers.
func (b *Box) reply(msg *Message) *answer {
	return &b.Out.answers[msg.seq%maxAnswers]
}

// pull copies the next piece of a message from registered memory, from the first piece upwards; see share.
func (m *Mail) pull(b *Box, msg *Message) error {
	if !msg.answered {
		msg.copyPiece(msg.Vec.Ptr, msg.src, msg.moved)
		msg.moved++
		msg.ending = msg.moved == msg.pieces
		return nil
	}
	k := msg.moved + 1
	theirs := count(b.in.claimed.Load(), msg.seq)
	if k <= msg.pieces-theirs {
		b.reply(msg).pulled.Store(word(msg.seq, k))
		theirs = count(b.in.claimed.Load(), msg.seq)
	}
	switch {
	case theirs > msg.pieces:
		return m.damaged(b.Peer, "count of pieces", uint64(theirs))
	case k > msg.pieces-theirs:
		msg.ending = true
	default:
		msg.copyPiece(msg.Vec.Ptr, msg.src, k-1)
		msg.moved = k
	}
	return nil
}

// meet waits for pieces that the sender still copies. If the sender skipped the piece where both met, it copies that.
func (b *Box) meet(msg *Message) (done bool) {
	if !msg.answered {
		return true
	}
	if theirs := count(b.in.claimed.Load(), msg.seq); count(b.in.done.Load(), msg.seq) < theirs {
		return false
	}
	for kept := count(b.in.kept.Load(), msg.seq); msg.moved < msg.pieces-kept; msg.moved++ {
		msg.copyPiece(msg.Vec.Ptr, msg.src, msg.moved)
	}
	return true
}

// drain copies the next piece of a message out of the sender's window. Once that is done, it waits until the sender has
// written the rest.
func (m *Mail) drain(b *Box, msg *Message) (moved, done bool, err error) {
	k, ready := msg.moved, count(b.in.done.Load(), msg.seq)
	if msg.answered && k >= windowPieces {
		return ready >= msg.pieces, ready >= msg.pieces, nil
	}
	if ready <= k {
		return false, false, nil
	}
	w, err := m.window(b, windowPieces*windowPiece)
	if err != nil {
		return false, false, err
	}
	off := k * msg.piece
	src, n := unsafe.Add(w, msg.windowAt(k)), min(msg.piece, msg.Bytes-off)
	cpu.Copy(unsafe.Add(msg.Vec.Ptr, off), src, n, false)
	msg.moved = k + 1
	spin.Release(&b.reply(msg).pulled, word(msg.seq, k+1))
	return true, msg.moved == msg.pieces, nil
}

// RecvNow receives a message that takes little time, if no other receive waits and the message is there at one of
// Mail.Looks looks. Like SendNow it takes the box.
func (m *Mail) RecvNow(b *Box, v *team.Vec) (n int, done bool, err error) {
	if v.Bytes() >= sharedBytes {
		return 0, false, nil
	}
	l := &b.Recv
	if err := l.Enter(); err != nil {
		return 0, true, m.Error("recv", b.Peer, "", err)
	}
	n, done, err = m.recvHeld(b, v, false, m.Looks, nil)
	l.Unlock()
	if err != nil && !done {
		return 0, true, m.Fail("recv", b.Peer, err)
	}
	return n, done, err
}

// recvHeld is RecvNow for callers that hold the lane, with a message that takes little time. exact says that v must have
// as many elements; told, if not nil, is filled in. An error is fatal unless the message is done.
func (m *Mail) recvHeld(b *Box, v *team.Vec, exact bool, looks int, note *team.MessageNote) (n int, done bool, err error) {
	if b.Recv.waiting.Head != nil || !m.quick(v) {
		return 0, false, nil
	}
	if b.local < 0 {
		return m.recvFar(b, v, exact, looks, note)
	}
	var s *slot
	for i := looks; s == nil && i > 0; i-- {
		s = b.arrived()
	}
	if s == nil {
		return 0, false, nil
	}
	h, err := m.readHead(b, s.Head)
	if err != nil {
		return 0, false, err
	}
	n, done, err = m.take(b, s, h, v, exact)
	if note != nil && done && err == nil {
		note.Kind, note.Seq, note.Bytes = team.KindRecv, b.Recv.Seq, v.Bytes()
	}
	return n, done, err
}
