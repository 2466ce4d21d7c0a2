package net

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	ib "github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
)

// Over RDMA, writes, reads and calls have queue pairs of their own, one for each direction: the peer may deregister memory
// while this rank writes there, and that fails a queue pair, which must cost nothing else. Only the rank that uses it sends
// frames on it. It makes it when it first has something to send, and anew after such a failure, in the same way:
//
//   - It makes its end, and tells the peer its address on the control connection.
//   - The peer makes its end, connects it, and answers with that one's address, or why it has none.
//   - What was queued meanwhile leaves; without an end of the peer, in messages on the first connection.

// sides are a wire's connections for writes, reads and calls.
type sides struct {
	adding sync.Mutex
	lanes  atomic.Pointer[[]*data] // all of the wire's data connections, with these
	ended  bool                    // no more are made; guarded by adding

	mine struct {
		sync.RWMutex       // held for reading by those that put; by nobody who handles what the peer puts
		way          *data // of what this rank puts; nil before the first
		side         *data // likewise, if it is a connection of its own; nil: not made, or the peer has made none
	}
	theirs struct {
		sync.Mutex
		side *data // of what the peer puts; nil: not made
	}
}

// sideIndex is the index of the peer's in its sink, and of this rank's in order.
const sideIndex = transport.MostConnections

// Bits of Link.over: nothing more of it will come on the peer's side connection; and there is more to come on that than
// other connections tell.
const (
	sideBit  = 1 << sideIndex
	sidedBit = 1 << (sideIndex + 1)
)

// sided is Header.Place of an Over frame, of a link that has put something on its side connection.
const sided = 1

// every returns all data connections.
func (w *Wire) every() []*data { return *w.sides.lanes.Load() }

// whole reports whether nothing more of a link will come, by its over.
func (w *Wire) whole(over uint32) bool {
	return over&w.all() == w.all() && (over&sidedBit == 0 || over&sideBit != 0)
}

// puts calls f with the connection of what this rank writes, reads and calls. f must not wait.
func (w *Wire) puts(f func(d *data)) {
	if w.rdma == nil {
		f(&w.data[w.home(0)])
		return
	}
	m := &w.sides.mine
	m.RLock()
	if m.way == nil {
		m.RUnlock()
		w.open()
		m.RLock()
	}
	defer m.RUnlock()
	f(m.way)
}

// putsIf is puts, unless nothing was put so far.
func (w *Wire) putsIf(f func(d *data)) {
	if w.rdma == nil {
		f(&w.data[w.home(0)])
		return
	}
	m := &w.sides.mine
	m.RLock()
	defer m.RUnlock()
	if m.way != nil {
		f(m.way)
	}
}

// open makes this rank's side connection.
func (w *Wire) open() {
	m := &w.sides.mine
	m.Lock()
	defer m.Unlock()
	if m.way != nil {
		return
	}
	m.way = &w.data[w.home(0)]
	d, addr, err := w.side(0)
	if err != nil {
		w.sideless(err)
		return
	}
	m.side, m.way = d, d
	w.control.tell(controlSide, addr.Append(nil), false)
}

// sideless says that what this rank writes goes in messages.
func (w *Wire) sideless(err error) {
	w.node.config.Log.Warn("network: no queue pair for one-sided operations, whose data are copied into messages", "peer", w.peer,
		"err", err)
}

// side makes an end of a side connection.
func (w *Wire) side(access ib.Access) (*data, ib.Address, error) {
	nic, err := w.node.nic()
	if err != nil {
		return nil, ib.Address{}, err
	}
	c, addr, err := verbs.New(nic, w.node.config.Find, access)
	if err != nil {
		return nil, addr, err
	}
	d := &data{Conn: c, side: true}
	c.Begin(sink{w, sideIndex})
	d.end = end{fd: c.FD(), ready: func() bool { return w.move(d) }, told: c.Told, arm: c.Arm}
	if err := w.join(d); err != nil {
		c.Close()
		return nil, addr, err
	}
	return d, addr, nil
}

// join adds a side connection to those of the wire.
func (w *Wire) join(d *data) error {
	s := &w.sides
	s.adding.Lock()
	defer s.adding.Unlock()
	if s.ended {
		return fault.ErrClosed
	}
	if err := w.node.poll.add(&d.end); err != nil {
		return err
	}
	lanes := append(slices.Clone(w.every()), d)
	s.lanes.Store(&lanes)
	return nil
}

// drop ends a side connection that is of no use.
func (w *Wire) drop(d *data) {
	w.node.poll.remove(&d.end)
	d.Close()
}

// shut lets nobody make further connections, and returns all that there are.
func (s *sides) shut() []*data {
	s.adding.Lock()
	defer s.adding.Unlock()
	s.ended = true
	return *s.lanes.Load()
}

// askedSide handles the peer's word that it has made, or made anew, its end of the connection for what it puts.
func (w *Wire) askedSide(body []byte) error {
	addr, err := ib.ParseAddress(body)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", frame.ErrFrame, err)
	case w.rdma == nil:
		return fmt.Errorf("%w: it makes a queue pair, and TCP carries the data", frame.ErrFrame)
	}
	t := &w.sides.theirs
	t.Lock()
	defer t.Unlock()
	var mine ib.Address
	first := t.side == nil
	if first {
		t.side, mine, err = w.side(ib.RemoteWrite | ib.RemoteRead)
	} else {
		mine, err = t.side.Conn.(*verbs.Conn).Renew(nil)
		t.side.err = nil
	}
	if err == nil {
		err = t.side.Conn.(*verbs.Conn).Connect(addr, fmt.Sprint("rank ", w.peer))
	}
	switch {
	case err == nil:
		w.control.tell(controlSided, mine.Append(nil), false)
	case errors.Is(err, fault.ErrClosed): // the wire ends
	case first:
		if t.side != nil {
			w.drop(t.side)
			t.side = nil
		}
		text := err.Error()
		w.control.tell(controlSideless, []byte(text[:min(len(text), transport.MaxText)]), false)
	default:
		return lostRail(fmt.Sprintf("of rank %d: %v", w.node.config.Rank, err))
	}
	return nil
}

// answeredSide handles the peer's answer: it has connected its end.
func (w *Wire) answeredSide(body []byte) error {
	addr, err := ib.ParseAddress(body)
	m := &w.sides.mine
	m.Lock()
	defer m.Unlock()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", frame.ErrFrame, err)
	case m.side == nil:
		return fmt.Errorf("%w: it answers what this rank has not said", frame.ErrFrame)
	}
	err = m.side.Conn.(*verbs.Conn).Connect(addr, fmt.Sprint("rank ", w.peer))
	if err != nil && !errors.Is(err, fault.ErrClosed) {
		return lostRail(fmt.Sprintf("of rank %d: %v", w.node.config.Rank, err))
	}
	return nil
}

// refusedSide handles the peer's answer that it has no end.
func (w *Wire) refusedSide(why string) error {
	m := &w.sides.mine
	m.Lock()
	defer m.Unlock()
	if m.side == nil {
		return fmt.Errorf("%w: it answers what this rank has not said", frame.ErrFrame)
	}
	d := m.side
	m.side, m.way = nil, &w.data[w.home(0)]
	m.way.Conn.(*verbs.Conn).Adopt(d.Conn.(*verbs.Conn))
	w.drop(d)
	w.sideless(errors.New(why))
	return nil
}

// sideFailed handles the failure of a side connection. This rank's is made anew if the peer has refused what it wrote. Else
// the control connection will tell why, or the peer makes it anew.
func (w *Wire) sideFailed(d *data) {
	m, t := &w.sides.mine, &w.sides.theirs
	m.Lock()
	if mine := d == m.side; mine {
		w.renew(d)
	}
	m.Unlock()
	t.Lock()
	if d == t.side {
		d.failed(d.Conn.(*verbs.Conn).End())
	}
	t.Unlock()
}

// renew makes this rank's side connection anew. The caller holds the lock.
func (w *Wire) renew(d *data) {
	c := d.Conn.(*verbs.Conn)
	err := c.End()
	if verbs.Refused(err) {
		var addr ib.Address
		if addr, err = c.Renew(w.denied); err == nil {
			w.node.config.Log.Info("network: the peer's memory has refused a write or a read", "peer", w.peer)
			w.control.tell(controlSide, addr.Append(nil), false)
		}
	}
	d.failed(err)
}

// failed notes a side connection's failure.
func (d *data) failed(err error) {
	if err != nil && d.err == nil {
		d.err, d.since = err, time.Now()
	}
}

// denied tells a link that its peer's memory refuses what it writes to a key.
func (w *Wire) denied(h frame.Header) {
	if l := (*w.links.Load())[h.Comm]; l != nil && l.server != nil && !l.closed.Load() {
		l.server.Denied(transport.Target{Key: h.Seq, Slot: h.Place, Offset: h.Offset})
	}
}

// overdueSide ends the wire if a side connection has failed and nothing has come of it.
func (w *Wire) overdueSide(now time.Time) {
	var err error
	late := func(d *data) {
		if d != nil && d.err != nil && now.Sub(d.since) > silence {
			err = d.err
		}
	}
	m, t := &w.sides.mine, &w.sides.theirs
	m.RLock()
	late(m.side)
	m.RUnlock()
	t.Lock()
	late(t.side)
	t.Unlock()
	if err != nil && !w.ended.Load() {
		w.cut(lostRail(err.Error()))
	}
}

// Read implements transport.Endpoint. It needs RDMA.
func (l *Link) Read(t transport.Target, p unsafe.Pointer, n int, r *transport.Result) (begun bool) {
	w := l.wire.Load()
	if w == nil || w.rdma == nil || t.Region.Key == 0 {
		return false
	}
	h := l.target(frame.Read, t, n)
	l.putting.Lock()
	defer l.putting.Unlock()
	if !l.up || l.closed.Load() {
		return false
	}
	w.puts(func(d *data) {
		if d.side {
			o := l.order.Load()
			if begun = d.Conn.(*verbs.Conn).Read(h, p, &o.sent[sideIndex], r); begun {
				l.sided = true
				l.queued.Add(1)
				o.add(sideIndex)
			}
		}
	})
	return begun
}

// target is the head of what goes to or comes from a target.
func (l *Link) target(k frame.Kind, t transport.Target, n int) frame.Header {
	return frame.Header{Kind: k, Place: t.Slot, Comm: l.id, Seq: t.Key, Length: uint64(n), Offset: t.Offset,
		Landing: frame.Landing{Address: t.Region.Address, Key: t.Region.Key}}
}
