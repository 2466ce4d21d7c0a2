package p2p

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/engine"
)

// arrived is the peer's next message for this rank, or nil. The caller holds the lane.
func arrived(m *engine.Mail) *engine.Slot {
	seq := m.Recv.Seq + 1
	if s := &m.In.Slots[seq%engine.MailSlots]; s.Seq.Load() == seq {
		return s
	}
	return nil
}

// take receives a message that does not take long: it has come with its announcement, or is in registered memory and so
// short that the sender need not help. The message is done, or it is one of the others; the error of one that is done is
// the receiver's alone, else it is fatal.
func take(c *engine.Comm, m *engine.Mail, s *engine.Slot, h header, v *team.Vec) (n int, done bool, err error) {
	place := *s.Place()
	if h.way == wayLarge && (place.Generation == 0 || h.bytes >= sharedBytes) {
		return 0, false, nil
	}
	verdict, err := judge(h, v)
	if err != nil {
		taken(m, verdict)
		return 0, true, c.MessageError("recv", m.Peer, "", err)
	}
	src := unsafe.Pointer(&s.Data)
	switch h.way {
	case wayEager:
		src = eager(c, m.InEager, m.Recv.Seq+1)
	case wayLarge:
		if src, err = c.ResolveAt(m.Peer, place, h.bytes); err != nil {
			return 0, false, err
		}
	}
	cpu.Copy(v.Ptr, src, h.bytes, false)
	taken(m, verdictOK)
	return h.count, true, nil
}

// taken says that this rank has done with the next message.
func taken(m *engine.Mail, verdict uint8) {
	l := &m.Recv
	l.Seq++
	shift := l.Seq % engine.MailSlots * 8
	old := m.Out.Verdicts.Load()
	if v := old&^(0xff<<shift) | uint64(verdict)<<shift; v != old {
		spin.Release(&m.Out.Verdicts, v)
	}
	spin.Release(&m.Out.Taken, l.Seq)
}

// advanceRecv moves the first receive from one peer on, by a piece at most. The caller holds the lane. An error is
// fatal.
func advanceRecv(c *engine.Comm, m *engine.Mail) (moved bool, err error) {
	h := m.Recv.Waiting.Head
	if h == nil {
		return false, nil
	}
	if !h.Started {
		s := arrived(m)
		if s == nil {
			if !h.Offered && h.Bytes >= sharedBytes {
				err = offer(c, m, h)
			}
			return false, err
		}
		return true, match(c, m, h, s)
	}
	var done bool
	switch {
	case h.Ending:
		done = meet(m, h)
		moved = done
	case h.Src != nil:
		moved, err = true, pull(c, m, h)
	default:
		moved, done, err = drain(c, m, h)
	}
	if done && err == nil {
		m.Recv.Waiting.Pop()
		taken(m, verdictOK)
		note(c, h, h.Src != nil)
		finish(h)
	}
	return moved, err
}

// match begins with the message that the first receive gets.
func match(c *engine.Comm, m *engine.Mail, h *engine.Message, s *engine.Slot) error {
	hd, err := readHead(c, m, s.Head)
	if err != nil {
		return err
	}
	if n, done, err := take(c, m, s, hd, &h.Vec); done || err != nil {
		if done {
			h.Got, h.Err = n, err
			m.Recv.Waiting.Pop()
			finish(h)
			err = nil
		}
		return err
	}
	if verdict, err := judge(hd, &h.Vec); err != nil {
		h.Err = c.MessageError("recv", m.Peer, "", err)
		m.Recv.Waiting.Pop()
		taken(m, verdict)
		finish(h)
		return nil
	}
	direct := s.Place().Generation != 0
	h.Seq = m.Recv.Seq + 1
	n, number := pieces(hd.bytes, direct)
	if !h.Offered && (direct || number > windowPieces) { // else all of it comes through the window
		if err := offer(c, m, h); err != nil {
			return err
		}
	} else if !h.Offered {
		spin.Release(&reply(m, h).Pulled, word(h.Seq, 0))
		h.Buf.Why = "what fits into the sender's window goes through it"
	}
	h.Got, h.Bytes, h.Piece, h.Pieces, h.Started = hd.count, hd.bytes, n, number, true
	h.Answered = h.Buf.Direct()
	if direct {
		h.Src, err = c.ResolveAt(m.Peer, *s.Place(), h.Bytes)
	}
	return err
}

// offer lets the sender of the next message write to where h is, if that is registered.
func offer(c *engine.Comm, m *engine.Mail, h *engine.Message) error {
	h.Seq, h.Offered = m.Recv.Seq+1, true
	a := reply(m, h)
	spin.Release(&a.Pulled, word(h.Seq, 0))
	if err := acquire(c, m, h); err != nil || !h.Buf.Direct() {
		return err
	}
	a.Into, a.Type, a.Bytes = h.Buf.At, uint64(h.Vec.Type), uint64(h.Vec.Bytes())
	spin.Release(&a.Seq, h.Seq)
	return nil
}

// reply is what this rank, the receiver of h, says about it.
func reply(m *engine.Mail, h *engine.Message) *engine.Answer {
	return &m.Out.Answers[h.Seq%engine.MailAnswers]
}

// pull copies the next piece of a message from registered memory, the first one first; see share.
func pull(c *engine.Comm, m *engine.Mail, h *engine.Message) error {
	if !h.Answered {
		copyPiece(h, h.Vec.Ptr, h.Src, h.Next)
		h.Next++
		h.Ending = h.Next == h.Pieces
		return nil
	}
	k := h.Next + 1
	theirs := count(m.In.Claimed.Load(), h.Seq)
	if k <= h.Pieces-theirs {
		reply(m, h).Pulled.Store(word(h.Seq, k))
		theirs = count(m.In.Claimed.Load(), h.Seq)
	}
	switch {
	case theirs > h.Pieces:
		return c.Damaged(m.Peer, "count of pieces", uint64(theirs))
	case k > h.Pieces-theirs:
		h.Ending = true
	default:
		copyPiece(h, h.Vec.Ptr, h.Src, k-1)
		h.Next = k
	}
	return nil
}

// meet waits for what the sender still copies, and copies the piece where both met if the sender has not.
func meet(m *engine.Mail, h *engine.Message) (done bool) {
	if !h.Answered {
		return true
	}
	if theirs := count(m.In.Claimed.Load(), h.Seq); count(m.In.Done.Load(), h.Seq) < theirs {
		return false
	}
	for kept := count(m.In.Kept.Load(), h.Seq); h.Next < h.Pieces-kept; h.Next++ {
		copyPiece(h, h.Vec.Ptr, h.Src, h.Next)
	}
	return true
}

// drain copies the next piece of a message out of the sender's window, or waits for the sender to have written the rest.
func drain(c *engine.Comm, m *engine.Mail, h *engine.Message) (moved, done bool, err error) {
	k, ready := h.Next, count(m.In.Done.Load(), h.Seq)
	if h.Answered && k >= windowPieces {
		return ready >= h.Pieces, ready >= h.Pieces, nil
	}
	if ready <= k {
		return false, false, nil
	}
	w, err := c.Window(m, windowPieces*windowPiece)
	if err != nil {
		return false, false, err
	}
	off := k * h.Piece
	src, n := unsafe.Add(w, windowAt(h, k)), min(h.Piece, h.Bytes-off)
	cpu.Copy(unsafe.Add(h.Vec.Ptr, off), src, n, false)
	h.Next = k + 1
	spin.Release(&reply(m, h).Pulled, word(h.Seq, k+1))
	return true, h.Next == h.Pieces, nil
}
