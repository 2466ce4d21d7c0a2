package mail

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/team"
)

// arrived is the peer's next message for this rank, or nil. The caller holds the lane.
func (b *Box) arrived() *Slot {
	seq := b.Recv.Seq + 1
	if s := &b.In.Slots[seq%Slots]; s.Seq.Load() == seq {
		return s
	}
	return nil
}

// take receives a message that does not take long: it has come with its announcement, or is in registered memory and so
// short that the sender need not help. The message is done, or it is one of the others; the error of one that is done is
// the receiver's alone, else it is fatal.
func (m *Mail) take(b *Box, s *Slot, h header, v *team.Vec) (n int, done bool, err error) {
	place := *s.Place()
	if h.way == wayLarge && (place.Generation == 0 || h.bytes >= sharedBytes) {
		return 0, false, nil
	}
	verdict, err := judge(h, v)
	if err != nil {
		b.taken(verdict)
		return 0, true, m.Error("recv", b.Peer, "", err)
	}
	src := unsafe.Pointer(&s.Data)
	switch h.way {
	case wayEager:
		src = m.eagerSlot(b.InEager, b.Recv.Seq+1)
	case wayLarge:
		if src, err = m.resolve(b.Peer, place, h.bytes); err != nil {
			return 0, false, err
		}
	}
	cpu.Copy(v.Ptr, src, h.bytes, false)
	b.taken(verdictOK)
	return h.count, true, nil
}

// taken says that this rank has done with the next message.
func (b *Box) taken(verdict uint8) {
	l := &b.Recv
	l.Seq++
	shift := l.Seq % Slots * 8
	old := b.Out.Verdicts.Load()
	if v := old&^(0xff<<shift) | uint64(verdict)<<shift; v != old {
		spin.Release(&b.Out.Verdicts, v)
	}
	spin.Release(&b.Out.Taken, l.Seq)
}

// advanceRecv moves the first receive from one peer on, by a piece at most. The caller holds the lane. An error is
// fatal.
func (m *Mail) advanceRecv(b *Box) (moved bool, err error) {
	h := b.Recv.Waiting.Head
	if h == nil {
		return false, nil
	}
	if !h.Started {
		s := b.arrived()
		if s == nil {
			if !h.Offered && h.Bytes >= sharedBytes {
				err = m.offer(b, h)
			}
			return false, err
		}
		return true, m.match(b, h, s)
	}
	var done bool
	switch {
	case h.Ending:
		done = b.meet(h)
		moved = done
	case h.Src != nil:
		moved, err = true, m.pull(b, h)
	default:
		moved, done, err = m.drain(b, h)
	}
	if done && err == nil {
		b.Recv.Waiting.Pop()
		b.taken(verdictOK)
		m.note(h, h.Src != nil)
		h.finish()
	}
	return moved, err
}

// match begins with the message that the first receive gets.
func (m *Mail) match(b *Box, h *Message, s *Slot) error {
	hd, err := m.readHead(b, s.Head)
	if err != nil {
		return err
	}
	if n, done, err := m.take(b, s, hd, &h.Vec); done || err != nil {
		if done {
			h.Got, h.Err = n, err
			b.Recv.Waiting.Pop()
			h.finish()
			err = nil
		}
		return err
	}
	if verdict, err := judge(hd, &h.Vec); err != nil {
		h.Err = m.Error("recv", b.Peer, "", err)
		b.Recv.Waiting.Pop()
		b.taken(verdict)
		h.finish()
		return nil
	}
	direct := s.Place().Generation != 0
	h.Seq = b.Recv.Seq + 1
	n, number := pieces(hd.bytes, direct)
	if !h.Offered && (direct || number > windowPieces) { // else all of it comes through the window
		if err := m.offer(b, h); err != nil {
			return err
		}
	} else if !h.Offered {
		spin.Release(&b.reply(h).Pulled, word(h.Seq, 0))
		h.Buf.Why = "what fits into the sender's window goes through it"
	}
	h.Got, h.Bytes, h.Piece, h.Pieces, h.Started = hd.count, hd.bytes, n, number, true
	h.Answered = h.Buf.Direct()
	if direct {
		h.Src, err = m.resolve(b.Peer, *s.Place(), h.Bytes)
	}
	return err
}

// offer lets the sender of the next message write to where h is, if that is registered.
func (m *Mail) offer(b *Box, h *Message) error {
	h.Seq, h.Offered = b.Recv.Seq+1, true
	a := b.reply(h)
	spin.Release(&a.Pulled, word(h.Seq, 0))
	if err := h.Acquire(m.c, h); err != nil || !h.Buf.Direct() {
		return err
	}
	a.Into, a.Type, a.Bytes = h.Buf.At, uint64(h.Vec.Type), uint64(h.Vec.Bytes())
	spin.Release(&a.Seq, h.Seq)
	return nil
}

// reply is what this rank, the receiver of h, says about it.
func (b *Box) reply(h *Message) *Answer {
	return &b.Out.Answers[h.Seq%Answers]
}

// pull copies the next piece of a message from registered memory, the first one first; see share.
func (m *Mail) pull(b *Box, h *Message) error {
	if !h.Answered {
		h.copyPiece(h.Vec.Ptr, h.Src, h.Next)
		h.Next++
		h.Ending = h.Next == h.Pieces
		return nil
	}
	k := h.Next + 1
	theirs := count(b.In.Claimed.Load(), h.Seq)
	if k <= h.Pieces-theirs {
		b.reply(h).Pulled.Store(word(h.Seq, k))
		theirs = count(b.In.Claimed.Load(), h.Seq)
	}
	switch {
	case theirs > h.Pieces:
		return m.damaged(b.Peer, "count of pieces", uint64(theirs))
	case k > h.Pieces-theirs:
		h.Ending = true
	default:
		h.copyPiece(h.Vec.Ptr, h.Src, k-1)
		h.Next = k
	}
	return nil
}

// meet waits for what the sender still copies, and copies the piece where both met if the sender has not.
func (b *Box) meet(h *Message) (done bool) {
	if !h.Answered {
		return true
	}
	if theirs := count(b.In.Claimed.Load(), h.Seq); count(b.In.Done.Load(), h.Seq) < theirs {
		return false
	}
	for kept := count(b.In.Kept.Load(), h.Seq); h.Next < h.Pieces-kept; h.Next++ {
		h.copyPiece(h.Vec.Ptr, h.Src, h.Next)
	}
	return true
}

// drain copies the next piece of a message out of the sender's window, or waits for the sender to have written the rest.
func (m *Mail) drain(b *Box, h *Message) (moved, done bool, err error) {
	k, ready := h.Next, count(b.In.Done.Load(), h.Seq)
	if h.Answered && k >= windowPieces {
		return ready >= h.Pieces, ready >= h.Pieces, nil
	}
	if ready <= k {
		return false, false, nil
	}
	w, err := m.window(b, windowPieces*windowPiece)
	if err != nil {
		return false, false, err
	}
	off := k * h.Piece
	src, n := unsafe.Add(w, h.windowAt(k)), min(h.Piece, h.Bytes-off)
	cpu.Copy(unsafe.Add(h.Vec.Ptr, off), src, n, false)
	h.Next = k + 1
	spin.Release(&b.reply(h).Pulled, word(h.Seq, k+1))
	return true, h.Next == h.Pieces, nil
}

// RecvNow receives a message that comes soon and takes little time, if no other receive waits.
func (m *Mail) RecvNow(peer int, v *team.Vec) (n int, done bool, err error) {
	if v.Bytes() >= sharedBytes {
		return 0, false, nil
	}
	b := &m.boxes[peer]
	l := &b.Recv
	if err := l.Enter(); err != nil {
		return 0, true, m.Error("recv", b.Peer, "", err)
	}
	if l.Waiting.Head != nil || !m.quick(v) {
		l.Unlock()
		return 0, false, nil
	}
	var s *Slot
	for i := m.team.Looks(); s == nil && i > 0; i-- {
		s = b.arrived()
	}
	if s == nil {
		l.Unlock()
		return 0, false, nil
	}
	h, err := m.readHead(b, s.Head)
	if err != nil {
		l.Unlock()
		return 0, true, m.Fail("recv", b.Peer, err)
	}
	n, done, err = m.take(b, s, h, v)
	l.Unlock()
	if err != nil && !done {
		return 0, true, m.Fail("recv", b.Peer, err)
	}
	return n, done, err
}
