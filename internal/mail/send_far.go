package mail

import (
	"encoding/binary"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// roomFar reports whether a batch can be sent. The caller holds the lane.
func (m *Mail) roomFar(b *Box, f *far, w *way) (bool, error) {
	taken := max(w.free.Load(), f.pair.Word(w.takenAt).Load())
	if taken > w.sent {
		return false, m.damagedFar(b, "count of batches taken", taken)
	}
	return w.sent-taken < uint64(w.slots) && f.pair.Sent() >= w.nextOut().until, nil
}

// add adds a message of n bytes to the batch that is being filled, which it begins if there is none. The caller fills
// in the data.
func (w *way) add(seq, head uint64, n int) (data unsafe.Pointer) {
	o := w.nextOut()
	if w.filled == 0 {
		binary.LittleEndian.PutUint64(o.b[16:], seq)
		w.filled = batchHead
	}
	binary.LittleEndian.PutUint64(o.b[w.filled:], head)
	data = unsafe.Pointer(&o.b[w.filled+recordHead])
	w.filled += padded(n)
	return data
}

// fits reports whether a message of n bytes fits into the batch that is being filled.
func (w *way) fits(n int) bool { return w.filled+padded(n) < w.bytes }

// flush sends the batch of w that is being filled, if there is one.
func (f *far) flush(w *way) {
	if w.filled == 0 {
		return
	}
	o := w.nextOut()
	w.sent++
	var taken [classes]uint64
	for i := range f.ways {
		taken[i] = f.ways[i].taken.Load()
		binary.LittleEndian.PutUint64(o.b[8*i:], taken[i])
	}
	f.mu.Lock()
	f.pair.Put(w.placeOf(w.sent), w.sent, unsafe.Pointer(&o.b[0]), w.filled)
	o.until = f.pair.Queued()
	f.mu.Unlock()
	for i := range f.ways {
		f.ways[i].told.Store(taken[i])
	}
	w.filled = 0
}

// sendFar is sendHeld for a peer on another host.
func (m *Mail) sendFar(b *Box, v *team.Vec, n int, note *team.MessageNote) (sent, free bool, err error) {
	l, f := &b.Send, m.reach(b, false)
	w := &f.ways[small]
	if free, err = m.roomFar(b, f, w); !free || err != nil || !l.idle() || !m.quick(v) {
		return false, free && l.idle(), err
	}
	m.fill(b, f, w, v, n)
	f.flush(w)
	if note != nil {
		note.Kind, note.Seq, note.Bytes, note.Between = team.KindSend, l.Seq, n, f.pair.Link()
	}
	return true, true, nil
}

// fill adds a message to the batch of w that is being filled.
func (m *Mail) fill(b *Box, f *far, w *way, v *team.Vec, n int) {
	l := &b.Send
	l.Seq++
	cpu.Copy(w.add(l.Seq, head(formEager, v.Type, v.Len), n), v.Ptr, n, false)
	if !m.between.bounces {
		m.c.NoteSmallFar(l.Seq, n, f.pair.Link())
	}
}

// advanceSendFar is advanceSend for a peer on another host.
func (m *Mail) advanceSendFar(b *Box) (moved bool, err error) {
	l := &b.Send
	if l.idle() {
		return false, nil
	}
	f := m.reach(b, false)
	if moved, err = m.advanceOpenFar(b, f); err != nil {
		return moved, err
	}
	for msg := l.waiting.Head; msg != nil && !msg.queued && msg.ready(); msg = l.waiting.Head {
		posted, err := m.postFar(b, f, msg)
		if err != nil || !posted {
			f.flush(&f.ways[small])
			return moved, err
		}
		moved = true
	}
	f.flush(&f.ways[small])
	return moved, nil
}

// postFar sends the first waiting message, or announces it, or adds it to the small batch that is being filled. It
// reports whether there was room.
func (m *Mail) postFar(b *Box, f *far, msg *Message) (posted bool, err error) {
	l, n := &b.Send, msg.Bytes
	if err := tooLong(n); err != nil { // it takes no number
		l.waiting.pop()
		msg.Err = m.Error("send", b.Peer, "", err)
		msg.finish()
		return true, nil
	}
	w, announced := &f.ways[small], false
	if n > m.between.eager {
		if l.Open.Head != nil && l.Seq+1-l.Open.Head.seq >= SendSlots {
			return false, nil // its places are another message's
		}
		if places := f.granted(l.Seq+1, msg); places > 0 && msg.parts == 0 {
			f.flush(w)
			m.open(b, msg)
			m.putFar(b, f, msg, places)
			return true, nil
		}
		free := false
		if n <= MediumFar {
			if free, err = m.roomFar(b, f, &f.ways[medium]); err != nil {
				return false, err
			}
		}
		if announced = !free; free {
			f.flush(w) // which has the messages before
			w = &f.ways[medium]
		} else {
			n = 0
		}
	}
	if w.filled > 0 && !w.fits(n) {
		f.flush(w)
	}
	if w.filled == 0 {
		if free, err := m.roomFar(b, f, w); !free || err != nil {
			return false, err
		}
	}
	if announced {
		m.open(b, msg)
		form := formLarge
		if msg.parts > 0 {
			form = formParts
		}
		w.add(msg.seq, head(form, msg.Vec.Type, msg.Vec.Len), 0)
		return true, nil
	}
	l.waiting.pop()
	m.fill(b, f, w, &msg.Vec, n)
	msg.seq = l.Seq
	msg.noteSmall(l.Seq, f.pair.Link())
	msg.finish()
	if n > m.between.eager {
		f.flush(w)
	}
	return true, nil
}

// open makes the first waiting message an open one.
func (m *Mail) open(b *Box, msg *Message) {
	l := &b.Send
	l.waiting.pop()
	l.Seq++
	msg.seq = l.Seq
	l.Open.push(msg)
}

// granted returns how many places the receiver has granted for message seq; 0 if not all yet, or if msg does not fit:
// then the receiver will refuse it.
func (f *far) granted(seq uint64, msg *Message) int {
	k := f.pair.Granted(grant(seq, 0)).Load()
	if k>>16 != seq {
		return 0
	}
	places, room := keyPlaces(k), 0
	for i := range places {
		if f.pair.Granted(grant(seq, i)).Load() != k {
			return 0
		}
		room += f.pair.Room(grant(seq, i))
	}
	switch {
	case k != key(seq, places, k>>8&1 != 0, msg.Vec.Type), msg.Bytes > room, k>>8&1 != 0 && msg.Bytes < room:
		return 0
	}
	return places
}

// putFar sends the data of a message to all places that were granted for it. Those that it does not need get a put
// without data, so that they are free again.
func (m *Mail) putFar(b *Box, f *far, msg *Message, places int) {
	k := f.pair.Granted(grant(msg.seq, 0)).Load()
	m.acquireFar(f, msg)
	f.mu.Lock()
	for i, off := 0, 0; i < places; i++ {
		at := grant(msg.seq, i)
		n := min(f.pair.Room(at), msg.Bytes-off)
		f.pair.Put(at, k, unsafe.Add(msg.Vec.Ptr, off), n)
		off += n
	}
	msg.until, msg.left = f.pair.Queued(), places
	f.mu.Unlock()
	msg.started = true
	m.note(msg, false, f.pair.Link())
}

// acquireFar finds the registration of a large message's memory, where RDMA devices use it, or makes it if the policy allows.
func (m *Mail) acquireFar(f *far, msg *Message) {
	if msg.Buf.Direct() || msg.Buf.Why != "" || !f.pair.RDMA() {
		return
	}
	if err := msg.acquire(m.c, msg); err != nil {
		msg.Buf.Why = err.Error()
	}
}

// advanceOpenFar moves on the large messages that have a number.
func (m *Mail) advanceOpenFar(b *Box, f *far) (moved bool, err error) {
	for msg := b.Send.Open.Head; msg != nil; {
		next := msg.next
		switch refused := f.pair.Word(refusal(msg.seq)).Load(); {
		case msg.started && msg.parts == 0:
			left := int(max(msg.until, f.pair.Sent()) - f.pair.Sent())
			moved = moved || left < msg.left
			if msg.left = left; left == 0 {
				b.Send.Open.remove(msg)
				msg.finish()
			}
		case refused>>verdictBits == msg.seq:
			b.Send.Open.remove(msg)
			msg.Err = m.Error("send", b.Peer, "", verdictError(uint8(refused&(1<<verdictBits-1)), &msg.Vec))
			msg.finish()
			moved = true
		case msg.parts > 0:
			one, err := m.sendParts(b, f, msg)
			if moved = moved || one; err != nil {
				return moved, err
			}
		default:
			if places := f.granted(msg.seq, msg); places > 0 {
				m.putFar(b, f, msg, places)
				moved = true
				continue // perhaps the kernel has taken it all
			}
		}
		msg = next
	}
	return moved, nil
}
