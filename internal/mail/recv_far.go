package mail

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// arrivedFar returns the peer's next message, if that is in a batch that has come. The caller holds the lane.
func (m *Mail) arrivedFar(b *Box) (r record, there bool, err error) {
	f := m.reach(b, true)
	for i := range f.ways {
		if r, there, err = m.inBatch(b, f, &f.ways[i]); there || err != nil {
			break
		}
	}
	return r, there, err
}

// inBatch is arrivedFar for the batches of a class.
func (m *Mail) inBatch(b *Box, f *far, w *way) (r record, there bool, err error) {
	seq := b.Recv.Seq + 1
	for {
		if w.end == 0 {
			if open, err := m.openBatch(b, f, w); !open || err != nil {
				return r, false, err
			}
		}
		if w.next > seq { // the next one is in a batch of the other class, or its data goes straight to its memory
			return r, false, nil
		}
		if r, err = m.record(b, w); err != nil || w.next == seq {
			return r, err == nil, err
		}
		if r.form != formLarge {
			return r, false, m.damagedFar(b, "number of a message", w.next)
		}
		m.takeFar(f, &r) // the data came before the announcement
	}
}

// openBatch looks into the next batch of a class, if it is there.
func (m *Mail) openBatch(b *Box, f *far, w *way) (open bool, err error) {
	number := w.taken.Load() + 1
	if f.pair.Word(w.placeOf(number)).Load() != number {
		return false, nil
	}
	n := f.pair.Landed(w.placeOf(number))
	if n < batchHead+recordHead {
		return false, m.damagedFar(b, "size of a batch", uint64(n))
	}
	in := w.batch(number)
	for i := range f.ways {
		f.ways[i].learn(uint64At(in, 8*i))
	}
	w.at, w.end, w.next = batchHead, n, uint64At(in, 16)
	return true, nil
}

// record reads the next message of a batch that has been opened.
func (m *Mail) record(b *Box, w *way) (r record, err error) {
	in := w.batch(w.taken.Load() + 1)
	v := uint64At(in, w.at)
	r.way, r.header = w, header{form: int(v >> 56), typ: dtype.Type(v >> 48), count: int(v & (1<<48 - 1))}
	limit := 0
	switch r.form {
	case formEager:
		limit = MediumFar
	case formLarge, formParts:
		limit = maxBytes
	}
	if !r.typ.Valid() || r.count > team.MaxCount || r.count*r.typ.Size() > limit {
		return r, m.damagedFar(b, "message", v)
	}
	r.bytes = r.count * r.typ.Size()
	if r.form == formEager {
		if w.at+padded(r.bytes) > w.end {
			return r, m.damagedFar(b, "message", v)
		}
		r.data = in[w.at+recordHead:][:r.bytes]
	}
	return r, nil
}

// learn notes how many batches the peer has taken. Batches of different classes may come in any order.
func (w *way) learn(taken uint64) {
	if taken > w.free.Load() { // only the receiver's lane writes it
		w.free.Store(taken)
	}
}

// takeFar goes on to the message after r, whose data is no longer needed.
func (m *Mail) takeFar(f *far, r *record) {
	w := r.way
	w.next++
	if w.at += padded(len(r.data)); w.at < w.end {
		return
	}
	w.end = 0
	number := w.taken.Load() + 1
	f.mu.Lock()
	f.post(w, number+uint64(w.slots))
	w.taken.Store(number)
	if number-max(w.told.Load(), w.asked) >= uint64(w.tell) {
		w.asked = number
		f.pair.Put(w.takenAt, number, nil, 0)
	}
	f.mu.Unlock()
}

// copyFar receives a small message into v. If the error is not nil, the message has been consumed nevertheless.
func (m *Mail) copyFar(b *Box, f *far, r *record, v *team.Vec, exact bool) (n int, err error) {
	_, err = verdictOn(r.header, v, exact)
	if err == nil {
		if r.bytes > 0 {
			cpu.Copy(v.Ptr, unsafe.Pointer(&r.data[0]), r.bytes, false)
		}
		n = r.count
	} else {
		err = m.Error("recv", b.Peer, "", err)
	}
	f.brief = r.way == &f.ways[small]
	b.Recv.Seq++
	m.takeFar(f, r)
	return n, err
}

// recvFar is recvHeld for a peer on another host; no receive waits.
func (m *Mail) recvFar(b *Box, v *team.Vec, exact bool, looks int, note *team.MessageNote) (n int, done bool, err error) {
	f := m.reach(b, true)
	var r record
	there := false
	for i := m.looks(b, looks); !there && i > 0; i-- {
		f.pair.Poll()
		if r, there, err = m.arrivedFar(b); err != nil {
			return 0, false, err
		}
	}
	if !there || r.form != formEager {
		return 0, false, nil
	}
	n, err = m.copyFar(b, f, &r, v, exact)
	if note != nil && err == nil {
		note.Kind, note.Seq, note.Bytes, note.Between = team.KindRecv, b.Recv.Seq, v.Bytes(), f.pair.Link()
	}
	return n, true, err
}

// advanceRecvFar is advanceRecv for a peer on another host.
func (m *Mail) advanceRecvFar(b *Box) (moved bool, err error) {
	l := &b.Recv
	msg := l.waiting.Head
	if msg == nil || msg.queued {
		return false, nil
	}
	f := m.reach(b, true)
	if msg.started {
		return m.landFar(b, f, msg)
	}
	if !msg.ready() {
		return false, nil
	}
	r, there, err := m.arrivedFar(b)
	switch {
	case err != nil:
		return false, err
	case there:
		return m.matchFar(b, f, msg, &r)
	}
	m.offerFar(b, f)
	if msg.offered && f.landed(msg) > 0 {
		msg.started = true
		return m.landFar(b, f, msg)
	}
	return false, nil
}

// matchFar starts to receive the message of a record.
func (m *Mail) matchFar(b *Box, f *far, msg *Message, r *record) (moved bool, err error) {
	l := &b.Recv
	verdict, err := verdictOn(r.header, &msg.Vec, msg.exact)
	switch {
	case r.form == formEager:
		f.takeBack(msg)
		msg.Got, msg.Err = m.copyFar(b, f, r, &msg.Vec, msg.exact)
		msg.seq = l.Seq
		msg.noteSmall(l.Seq, f.pair.Link())
	case err != nil:
		f.takeBack(msg)
		l.Seq++
		f.mu.Lock()
		f.pair.Put(refusal(l.Seq), l.Seq<<verdictBits|uint64(verdict), nil, 0)
		f.mu.Unlock()
		m.takeFar(f, r)
		msg.Err = m.Error("recv", b.Peer, "", err)
	case (r.form == formParts) != (msg.parts > 0):
		return false, m.damagedFar(b, "form of a message", uint64(r.form))
	case msg.parts > 0:
		msg.seq, msg.started = l.Seq+1, true
		m.takeFar(f, r)
		return true, nil
	default:
		m.acquireFar(f, msg)
		if !msg.offered && !f.offer(l.Seq+1, msg, r.bytes) {
			return false, nil // its places are being taken back
		}
		m.takeFar(f, r)
		msg.started = true
		return true, nil
	}
	l.waiting.pop()
	msg.finish()
	return true, nil
}

// offerFar grants the memory of receives that are next in turn, if their messages may be large, or medium and so many
// that they have not enough places. Each keeps its own until its message is there, so one is granted only after all
// before it.
func (m *Mail) offerFar(b *Box, f *far) {
	if f.brief {
		return
	}
	seq, least := b.Recv.Seq+1, MediumFar
	if b.Recv.waiting.Head.next != nil {
		least = EagerFar
	}
	for msg := b.Recv.waiting.Head; msg != nil && !msg.queued && seq <= b.Recv.Seq+SendSlots; msg = msg.next {
		if msg.Bytes > least && !msg.offered {
			if msg.parts > 0 || !msg.ready() {
				return
			}
			if m.acquireFar(f, msg); !f.offer(seq, msg, msg.Vec.Bytes()) {
				return
			}
		}
		seq++
	}
}

// offer grants n bytes of msg's memory for message seq. It reports whether the places were free.
func (f *far) offer(seq uint64, msg *Message, n int) bool {
	if f.taking && f.pair.Revoking() == 0 {
		f.taking = false
	}
	size, places := parts(n, f.pair.Connections())
	for i := range places {
		if f.taking || f.keys[int(seq+uint64(i))%SendSlots] != 0 {
			return false
		}
	}
	k := key(seq, places, msg.exact, msg.Vec.Type)
	f.mu.Lock()
	for i := range places {
		off := i * size
		f.pair.Grant(grant(seq, i), k, unsafe.Add(msg.Vec.Ptr, off), min(size, n-off))
		f.keys[int(seq+uint64(i))%SendSlots] = k
	}
	f.mu.Unlock()
	msg.seq, msg.offered, msg.landing = seq, true, places
	return true
}

// takeBack revokes what was granted for msg. A correct peer writes nothing there any more.
func (f *far) takeBack(msg *Message) {
	if !msg.offered {
		return
	}
	f.mu.Lock()
	for i := range msg.landing {
		f.pair.Revoke(grant(msg.seq, i), f.keys[int(msg.seq+uint64(i))%SendSlots])
		f.keys[int(msg.seq+uint64(i))%SendSlots] = 0
	}
	f.mu.Unlock()
	f.taking = true
}

// landed is how many parts are there of a message that was granted memory.
func (f *far) landed(msg *Message) (parts int) {
	for i := range msg.landing {
		if f.pair.Word(grant(msg.seq, i)).Load() == f.keys[int(msg.seq+uint64(i))%SendSlots] {
			parts++
		}
	}
	return parts
}

// landFar ends a message whose data goes straight to its memory, once it is there.
func (m *Mail) landFar(b *Box, f *far, msg *Message) (moved bool, err error) {
	if msg.parts > 0 {
		return m.landParts(b, f, msg)
	}
	if parts := f.landed(msg); parts < msg.landing {
		moved = parts > msg.moved
		msg.moved = parts
		return moved, nil
	}
	n := 0
	for i := range msg.landing {
		n += f.pair.Landed(grant(msg.seq, i))
		f.keys[int(msg.seq+uint64(i))%SendSlots] = 0
	}
	if n%msg.Vec.Type.Size() != 0 {
		return false, m.damagedFar(b, "size of a message", uint64(n))
	}
	msg.Got, msg.Bytes = n/msg.Vec.Type.Size(), n
	b.Recv.Seq++
	f.brief = false
	b.Recv.waiting.pop()
	m.note(msg, false, f.pair.Link())
	msg.finish()
	return true, nil
}
