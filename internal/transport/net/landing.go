package net

import (
	"errors"
	"sync"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/rdm"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
)

// Over RDMA or libfabric, a grant tells the peer the key of the memory, if that is registered. Then this side does nothing while the
// bytes come, and learns of each chunk by the place's index, or of all by a message behind them. What may not be written to any more must be taken back:
// the peer has acknowledged it, or the queue pairs, or the endpoint, are destroyed.

// landings are a wire's places by index, from 1.
type landings struct {
	mu   sync.Mutex
	of   []landing
	idle []uint32 // indexes that nobody has
}

type landing struct {
	link  *Link // nil: nobody's
	place int
}

func newLandings() *landings { return &landings{of: make([]landing, 1)} }

// index gives a place its index; 0 if there are too many.
func (a *landings) index(l *Link, place int) uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.idle); n > 0 {
		i := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.of[i] = landing{l, place}
		return i
	}
	if len(a.of) >= frame.MaxIndex {
		return 0
	}
	a.of = append(a.of, landing{l, place})
	return uint32(len(a.of) - 1)
}

// at returns which place an index is.
func (a *landings) at(i uint32) landing {
	a.mu.Lock()
	defer a.mu.Unlock()
	if int(i) >= len(a.of) {
		return landing{}
	}
	return a.of[i]
}

// free forgets the places of a communicator of which nothing more comes.
func (a *landings) free(comm uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, x := range a.of {
		if x.link != nil && x.link.id == comm {
			a.of[i] = landing{}
			a.idle = append(a.idle, uint32(i))
		}
	}
}

// land returns where the peer may write what is granted at a place, or none. The caller holds putting.
func (l *Link) land(w *Wire, place int) frame.Landing {
	x := &l.places[place]
	if x.n <= frame.Short || w.Err() != nil {
		return frame.Landing{}
	}
	if x.index == 0 && w.apart {
		if x.index = w.rdma.index(l, place); x.index == 0 {
			return frame.Landing{}
		}
	}
	at, cl := w.data[0].Conn.(device).Landing(x.p, x.n)
	if cl == nil {
		return frame.Landing{}
	}
	x.claim.Store(cl)
	if w.apart {
		at.Index, at.Device = x.index, x.device
	}
	return at
}

// GrantDevice implements transport.Endpoint.
func (l *Link) GrantDevice(place int, seq uint64, p unsafe.Pointer, n int) bool {
	l.putting.Lock()
	defer l.putting.Unlock()
	w, x := l.wire.Load(), &l.places[place]
	if !l.up || l.closed.Load() || w == nil || !w.apart {
		return false
	}
	x.p, x.n, x.device = p, n, true
	h := frame.Header{Kind: frame.Grant, Place: uint32(place), Comm: l.id, Seq: seq, Length: uint64(n), Landing: l.land(w, place)}
	if h.Landing == (frame.Landing{}) {
		x.p, x.n, x.device = nil, 0, false
		return false
	}
	x.granted.Store(seq)
	w.data[w.home(place)].Queue(h, nil, nil)
	l.node.said.Store(true)
	return true
}

// PutDevice implements transport.Endpoint.
func (l *Link) PutDevice(place int, seq uint64, p unsafe.Pointer, n int) bool {
	l.putting.Lock()
	defer l.putting.Unlock()
	w, x := l.wire.Load(), &l.places[place].theirs
	if !l.up || l.lost || l.closed.Load() || w == nil || !w.apart || x.granted.Load() != seq || x.landing == (frame.Landing{}) {
		return false
	}
	h := frame.Header{Kind: frame.Put, Place: uint32(place), Comm: l.id, Seq: seq, Length: uint64(n), Landing: x.landing}
	o, i := l.order.Load(), l.choose(w, h)
	if !w.data[i].Conn.(*verbs.Conn).PutDevice(h, p, &o.sent[i]) {
		return false
	}
	o.add(i)
	l.queued.Add(1)
	return true
}

// unclaim releases the claim on what was granted at a place: the peer writes there no more.
func (l *Link) unclaim(x *place) {
	if cl := x.claim.Swap(nil); cl != nil {
		cl.Release()
	}
}

// claimed reports whether the peer may write somewhere.
func (l *Link) claimed() bool {
	for i := range l.places {
		if l.places[i].claim.Load() != nil {
			return true
		}
	}
	return false
}

// doubt makes sure that the peer, which has not said that it writes no more, does not once the wire has closed.
func (w *Wire) doubt() {
	for _, l := range *w.links.Load() {
		if !l.claimed() {
			continue
		}
		for i := range w.data {
			if c, ok := w.data[i].Conn.(*rdm.Conn); ok {
				c.Doubt()
			}
		}
		return
	}
}

// unclaimAll releases all claims: the peer writes no more.
func (l *Link) unclaimAll() {
	l.putting.Lock()
	defer l.putting.Unlock()
	for i := range l.places {
		l.unclaim(&l.places[i])
	}
}

// tookBack handles a peer's acknowledgement after this side was closed.
func (l *Link) tookBack(x *place) {
	l.landing.Lock()
	defer l.landing.Unlock()
	if x.acks++; int(x.acks) == len(l.wire.Load().data) {
		l.unclaim(x)
	}
}

// takeBackLimit is how long a peer may take to acknowledge that it writes no more. Tests change it.
var takeBackLimit = time.Second

var errNoAnswer = errors.New("it does not acknowledge that it writes no more")

// takeBack takes back what is granted at all places, when the link is closed. Without an acknowledgement in time, the wire
// ends, and with it the queue pairs.
func (l *Link) takeBack(w *Wire) {
	l.putting.Lock()
	for i := range l.places {
		x := &l.places[i]
		if x.claim.Load() == nil {
			continue
		}
		l.landing.Lock()
		x.acks = 0
		l.landing.Unlock()
		for k := range w.data {
			w.data[k].Queue(frame.Header{Kind: frame.Revoke, Place: uint32(i), Comm: l.id, Seq: x.granted.Load()}, nil, nil)
		}
	}
	l.putting.Unlock()
	for end := clock.In(takeBackLimit); l.claimed() && !w.whole(l.over.Load()) && w.Err() == nil; {
		for i := range w.data {
			w.data[i].Flush()
			w.move(&w.data[i])
		}
		if end.Passed() {
			w.finish(transport.Cut, errNoAnswer)
			for w.Err() == nil { // another goroutine is ending it
				time.Sleep(time.Millisecond)
			}
		}
	}
	l.unclaimAll()
}

// Wrote implements verbs.Sink.
func (s sink) Wrote(index uint32, n int, last bool) error {
	x := s.w.rdma.at(index)
	h := frame.Header{Kind: frame.Part, Place: uint32(x.place), Length: uint64(n)}
	if last {
		h.Kind = frame.Put
	}
	if x.link == nil || s.i == oneSidedIndex {
		return frame.Refused(h, "nothing is granted by its index")
	}
	h.Comm, h.Seq = x.link.id, x.link.places[x.place].granted.Load()
	if _, ok, err := s.place(h, true); err != nil || !ok {
		return err
	}
	s.Landed(h)
	return nil
}
