package transporttest

import (
	"fmt"
	"slices"
	"unsafe"
)

// flush sends what may be sent now, and reports whether there was anything.
func (s *side) flush() (some bool) {
	for _, e := range s.eps {
		some = e.flush() || some
		some = e.reap() || some
	}
	return some
}

func (e *endpoint) flush() (some bool) {
	f := e.s.n.f
	for len(e.out) > 0 && e.made && !e.s.n.stopped && e.down.Load() == nil {
		if f.o.TwoSided && (len(e.flying) >= most || f.chance(4)) {
			break
		}
		m := e.out[0]
		e.out = e.out[1:]
		e.send(m)
		some = true
	}
	return some
}

func (e *endpoint) send(m *message) {
	f := e.s.n.f
	m.comm, m.from = e.comm.ID, e
	if m.counts() {
		if wrong := e.wrong(m); wrong != "" {
			text := fmt.Sprintf("rank %d puts %d bytes to place %d of rank %d, sequence %d: %s", e.s.n.config.Rank, m.n, m.place,
				e.s.peer, m.seq, wrong)
			if m.kind != put {
				text = fmt.Sprintf("rank %d writes or calls %d bytes to rank %d: %s", e.s.n.config.Rank, m.n, e.s.peer, wrong)
			}
			f.violated("%s", text)
			e.s.breaks(text)
			return
		}
		if m.kind == put {
			e.places[m.place].put = m.seq
		}
		e.s.count.SentPuts++
		e.s.count.SentBytes += uint64(m.n)
		if f.chance(2) {
			m.copy()
			m.done = true
		}
	}
	e.flying = append(e.flying, m)
	e.s.send(m)
}

// wrong says what is wrong with a message that is about to be sent.
func (e *endpoint) wrong(m *message) string {
	p := e.s.other.eps[m.comm]
	gone := p == nil || p.closed || p.down.Load() != nil
	if m.kind != put {
		if gone || p.server != nil {
			return ""
		}
		return "it has no Server"
	}
	if last := e.places[m.place].put; m.seq <= last {
		return fmt.Sprintf("sequence %d was put before", last)
	}
	if gone || m.n == 0 {
		return ""
	}
	switch x := p.places[m.place]; {
	case !x.open:
		return "nothing is granted"
	case m.seq != x.of:
		return fmt.Sprintf("sequence %d is granted", x.of)
	case m.n > len(x.grant):
		return fmt.Sprintf("%d bytes are granted", len(x.grant))
	}
	return ""
}

// receive takes a part of a put, write or call, and reports whether that was the last one.
func (e *endpoint) receive(m *message) bool {
	switch m.kind {
	case write:
		return e.written(m)
	case call:
		b := m.data
		e.serve(func() { e.server.Called(b) })
		for i := range b { // whoever has kept them finds out
			b[i] ^= 0xff
		}
		e.serving.Unlock()
		return true
	}
	return e.land(m)
}

// serve calls a method of the server without the fabric's mu. The caller unlocks serving.
func (e *endpoint) serve(method func()) {
	e.s.n.f.mu.Unlock()
	e.serving.Lock()
	method()
	e.s.n.f.mu.Lock()
}

// written lands a part of a write where the server says, if that is still wanted afterwards, and reports whether that was
// the last one.
func (e *endpoint) written(m *message) bool {
	f, n := e.s.n.f, min(m.rest[1]-m.rest[0], frame)
	if m.data == nil { // it was withdrawn
		return true
	}
	if f.o.Delays && n > 64 {
		n = 1 + f.random.IntN(n)
	}
	t := m.to
	t.Offset += uint64(m.rest[0])
	var p unsafe.Pointer
	m.asked = true
	e.serve(func() { p = e.server.Reach(t, n) })
	m.asked = false
	defer e.serving.Unlock()
	switch {
	case m.data == nil || !m.own && m.from.down.Load() != nil: // its sender's memory is not to be read any more
		return true
	case e.closed || e.s.cut || e.down.Load() != nil:
		return true
	case e.s.n.stopped: // it is asked again
		return false
	case p != nil:
		copy(unsafe.Slice((*byte)(p), n), m.data[m.rest[0]:])
	}
	m.rest[0] += n
	return m.rest[0] == m.rest[1]
}

// land lands a part of a put, and reports whether that was the last one.
func (e *endpoint) land(m *message) bool {
	f, x := e.s.n.f, e.places[m.place]
	if n := m.rest[1] - m.rest[0]; n > 0 {
		if f.o.TwoSided {
			e.list(x, true)
		}
		n = min(n, frame)
		if f.o.Delays && n > 64 {
			n = 1 + f.random.IntN(n)
		}
		from, to := m.rest[0], m.rest[0]+n
		if m.rest[0] = to; f.chance(2) { // or from the end
			m.rest[0] = from
			from, to = m.rest[1]-n, m.rest[1]
			m.rest[1] = from
		}
		copy(x.grant[from:to], m.data[from:to])
		if m.rest[0] < m.rest[1] {
			return false
		}
	}
	if x.open && x.of <= m.seq {
		e.ungrant(x)
	}
	x.landed.Store(int64(m.n))
	x.word.Store(m.seq)
	return true
}

// stop handles the peer's revocation. What has been put before it lands before the acknowledgement.
func (e *endpoint) stop(place int, seq uint64) {
	x := e.places[place]
	x.stopped = max(x.stopped, seq)
	e.out = slices.DeleteFunc(e.out, func(m *message) bool {
		revoked := m.kind == put && m.place == place && m.seq <= seq
		if revoked {
			m.drop()
		}
		return revoked
	})
	e.out = append(e.out, &message{kind: ack, place: place, seq: seq})
	e.reap()
}

// revoked handles the acknowledgement.
func (e *endpoint) revoked(place int, seq uint64) {
	if x := e.places[place]; x.open && x.of <= seq {
		e.ungrant(x)
	}
	e.revoking.Add(-1)
}

// drop forgets a put that is not sent.
func (m *message) drop() { m.data, m.done = nil, true }

// finish notes that a message was received. The sender of a two-sided fabric sees that at its next progress.
func (m *message) finish() {
	m.drop()
	if m.from == nil {
		return
	}
	if !m.from.s.n.f.o.TwoSided {
		m.from.reap()
	}
	m.from.s.n.ring()
}

// reap counts the puts whose memory is free again, and forgets what was received.
func (e *endpoint) reap() (some bool) {
	received := func(m *message) bool { return m.data == nil && m.done }
	n := len(e.flying)
	e.flying = slices.DeleteFunc(e.flying, received)
	some = len(e.flying) < n
	for len(e.puts) > 0 && e.puts[0].done {
		e.puts = e.puts[1:]
		e.sent.Add(1)
		some = true
	}
	return some
}
