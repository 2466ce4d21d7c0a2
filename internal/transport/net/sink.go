package net

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// sink is the frame.Sink of a data connection.
type sink struct {
	w *Wire
	i int
}

// Place implements frame.Sink.
func (s sink) Place(h frame.Header) (unsafe.Pointer, bool, error) { return s.place(h, false) }

// place is Place. written says that the peer has written the payload there already.
func (s sink) place(h frame.Header, written bool) (unsafe.Pointer, bool, error) {
	l := s.w.recent.Load()
	if l == nil || l.id != h.Comm {
		if l = (*s.w.links.Load())[h.Comm]; l == nil {
			return nil, false, frame.Refused(h, "no such communicator")
		}
		s.w.recent.Store(l)
	}
	if h.Kind.Served() {
		return s.reach(l, h)
	}
	if s.i == oneSidedIndex {
		return nil, false, frame.Refused(h, "it is on the connection of one-sided operations")
	}
	if len(s.w.data) > 1 {
		l.landing.Lock()
		defer l.landing.Unlock()
	}
	if l.over.Load()&(1<<s.i) != 0 {
		return nil, false, frame.Refused(h, "it was said to be closed")
	}
	if l.closed.Load() {
		return nil, false, nil
	}
	if uint64(h.Place) >= uint64(len(l.places)) {
		return nil, false, frame.Refused(h, fmt.Sprintf("there are %d places", len(l.places)))
	}
	x := &l.places[h.Place]
	if h.Seq <= x.done {
		return nil, false, nil
	}
	if h.Length == 0 {
		return nil, true, nil
	}
	came := x.cameOf(h.Seq)
	switch g := x.granted.Load(); {
	case h.Seq < g:
		return nil, false, nil
	case h.Seq > g:
		return nil, false, frame.Refused(h, fmt.Sprintf("sequence %d is granted", g))
	case h.Length > uint64(x.n-came):
		return nil, false, frame.Refused(h, fmt.Sprintf("%d bytes are granted, of which %d have come", x.n, came))
	}
	if x.device && !written {
		return nil, false, frame.Refused(h, "it is for memory of a device, where messages do not go")
	}
	return unsafe.Add(x.p, came), true, nil
}

// reach returns where the payload of a write or a call goes, as Place does.
func (s sink) reach(l *Link, h frame.Header) (p unsafe.Pointer, ok bool, err error) {
	switch {
	case l.over.Load()&(1<<s.i) != 0:
		return nil, false, frame.Refused(h, "it was said to be closed")
	case s.i != s.w.home(0) && s.i != oneSidedIndex: // two would call the server at once
		return nil, false, frame.Refused(h, "it is on another connection")
	case l.closed.Load():
		return nil, false, nil
	case l.server == nil:
		return nil, false, frame.Refused(h, "there is no server")
	case h.Kind == frame.Write:
		p = l.server.Reach(transport.Target{Key: h.Seq, Slot: h.Place, Offset: h.Offset}, int(h.Length))
		return p, p != nil, nil
	}
	if l.called == nil {
		l.called = make([]byte, transport.MaxCall)
	}
	return unsafe.Pointer(&l.called[0]), true, nil
}

// Landed implements frame.Sink.
func (s sink) Landed(h frame.Header) {
	l := s.w.recent.Load()
	if l == nil || l.id != h.Comm {
		l = (*s.w.links.Load())[h.Comm]
	}
	if l == nil || l.closed.Load() {
		return
	}
	if h.Kind.Served() {
		if h.Kind == frame.Call {
			l.server.Called(l.called[:h.Length])
		}
		return
	}
	if len(s.w.data) > 1 {
		l.landing.Lock()
		defer l.landing.Unlock()
	}
	x := &l.places[h.Place]
	came := x.cameOf(h.Seq) + int(h.Length)
	if h.Kind == frame.Part {
		x.part, x.came = h.Seq, came
		return
	}
	if came > 0 { // it was granted: else p may be another grant's
		x.p = nil // it would keep the caller's memory alive
	}
	l.unclaim(x)
	x.done = h.Seq
	x.landed.Store(int64(came))
	x.word.Store(h.Seq)
}

// Told implements frame.Sink.
func (s sink) Told(h frame.Header) error {
	l := (*s.w.links.Load())[h.Comm]
	if s.i == oneSidedIndex && h.Kind != frame.Over {
		return frame.Refused(h, "it is on the connection of one-sided operations")
	}
	switch h.Kind {
	case frame.Open:
		return s.w.opened(h)
	case frame.Refuse:
		s.w.refused(h.Comm)
		return nil
	case frame.Over:
		return s.over(h)
	}
	switch {
	case l == nil:
		return frame.Refused(h, "no such communicator")
	case l.closed.Load():
		if h.Kind == frame.Revoked && uint64(h.Place) < uint64(len(l.places)) {
			l.tookBack(&l.places[h.Place])
		}
		return nil
	case uint64(h.Place) >= uint64(len(l.places)):
		return frame.Refused(h, fmt.Sprintf("there are %d places", len(l.places)))
	}
	x := &l.places[h.Place]
	switch h.Kind {
	case frame.Grant:
		if h.Seq <= x.theirs.granted.Load() {
			return frame.Refused(h, fmt.Sprintf("sequence %d was granted before", x.theirs.granted.Load()))
		}
		x.theirs.landing = h.Landing
		x.theirs.room.Store(int64(h.Length))
		x.theirs.granted.Store(h.Seq)
	case frame.Revoke:
		l.putting.Lock()
		defer l.putting.Unlock()
		l.lost = true
		x.theirs.revoked = max(x.theirs.revoked, h.Seq)
		c := s.w.data[s.i].Conn
		c.Withdraw(h.Comm, h.Place, h.Seq)
		h.Kind = frame.Revoked
		c.Put(h, nil, nil)
	case frame.Revoked:
		if l.revoking.Load() == 0 {
			return frame.Refused(h, "nothing was revoked")
		}
		l.landing.Lock()
		defer l.landing.Unlock()
		if x.acks++; int(x.acks) == len(s.w.data) { // now what was put before has landed on all
			x.acks = 0
			l.unclaim(x)
			x.done = max(x.done, h.Seq)
			l.revoking.Add(-1)
		}
	}
	return nil
}

// over handles the end of a communicator on this connection.
func (s sink) over(h frame.Header) error {
	w := s.w
	w.mu.Lock()
	w.forget(h.Comm)
	l := (*w.links.Load())[h.Comm]
	bit := uint32(1) << s.i
	if l == nil && s.i == oneSidedIndex {
		w.mu.Unlock()
		return frame.Refused(h, "no such communicator")
	}
	if l == nil { // the peer's Open frame is still on its way on the first connection, or no link was made of it
		if len(w.overs) > mostAsked {
			w.mu.Unlock()
			return frame.Refused(h, "too many communicators are over that were never open")
		}
		w.overs[h.Comm] |= bit
		none := w.overs[h.Comm] == w.all()
		if none {
			delete(w.overs, h.Comm)
			h.Place = 0
			for i := range w.data { // before the Open frame of a side that is made now
				w.data[i].Put(h, nil, nil)
			}
		}
		w.mu.Unlock()
		return nil
	}
	more := bit
	if h.Place == alsoOneSided {
		more |= alsoOneSidedBit
		if l.over.Load()&bit != 0 { // that of the one-sided connection, which this rank could not make
			bit, more = oneSidedBit, more|oneSidedBit
		}
	}
	if l.over.Or(more)&bit != 0 {
		w.mu.Unlock()
		return frame.Refused(h, "it was said to be closed")
	}
	if l.closed.Load() {
		w.put(h.Comm, l.rest())
	}
	w.mu.Unlock()
	l.ended()
	return nil
}
