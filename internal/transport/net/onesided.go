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
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
)

// Over RDMA, writes, reads and calls have queue pairs of their own, one for each direction: the peer may deregister memory
// while this rank writes there, and that fails a queue pair, which must cost nothing else. Only the rank that uses it sends
// frames on it. It makes it when it first has something to send, and anew after such a failure, in the same way:
//
//   - It makes its end, and tells the peer its address on the control connection.
//   - The peer makes its end, connects it, and answers with that one's address, or why it has none.
//   - What was queued meanwhile leaves; without an end of the peer, in messages on the first connection.

// oneSided is a wire's connections for writes, reads and calls.
type oneSided struct {
	adding sync.Mutex
	lanes  atomic.Pointer[[]*data] // all of the wire's data connections, with these
	ended  bool                    // no more are made; guarded by adding

	mine struct {
		sync.RWMutex       // held for reading by those that put; by nobody who handles what the peer puts
		way          *data // of what this rank puts; nil before the first
		conn         *data // likewise, if it is a connection of its own; nil: not made, or the peer has made none
	}
	theirs struct {
		sync.Mutex
		conn *data // of what the peer puts; nil: not made
	}
}

// oneSidedIndex is the index of the peer's in its sink, and of this rank's in order.
const oneSidedIndex = transport.MostConnections

// Bits of Link.over: nothing more of it will come on the peer's one-sided connection; and there is more to come on that than
// other connections tell.
const (
	oneSidedBit     = 1 << oneSidedIndex
	alsoOneSidedBit = 1 << (oneSidedIndex + 1)
)

// alsoOneSided is Header.Place of an Over frame, of a link that has put something on its one-sided connection.
const alsoOneSided = 1

// every returns all data connections.
func (w *Wire) every() []*data { return *w.oneSided.lanes.Load() }

// whole reports whether nothing more of a link will come, by its over.
func (w *Wire) whole(over uint32) bool {
	return over&w.all() == w.all() && (over&alsoOneSidedBit == 0 || over&oneSidedBit != 0)
}

// puts calls f with the connection of what this rank writes, reads and calls. f must not wait.
func (w *Wire) puts(f func(d *data)) {
	if !w.putsIf(f) {
		w.open()
		w.putsIf(f)
	}
}

// putsIf is puts, unless nothing was put so far. It reports whether it has called f.
func (w *Wire) putsIf(f func(d *data)) bool {
	if !w.apart {
		f(&w.data[w.home(0)])
		return true
	}
	m := &w.oneSided.mine
	m.RLock()
	defer m.RUnlock()
	if m.way == nil {
		return false
	}
	f(m.way)
	return true
}

// open makes this rank's one-sided connection.
func (w *Wire) open() {
	m := &w.oneSided.mine
	m.Lock()
	defer m.Unlock()
	if m.way != nil {
		return
	}
	m.way = &w.data[w.home(0)]
	d, addr, err := w.newOneSided(0)
	if err != nil {
		w.noOneSided(err)
		return
	}
	m.conn, m.way = d, d
	w.control.tell(controlMake, addr.Append(nil), false)
}

// noOneSided says that what this rank writes goes in messages.
func (w *Wire) noOneSided(err error) {
	w.node.config.Log.Warn("network: no queue pair for one-sided operations, whose data are copied into messages", "peer", w.peer,
		"err", err)
}

// newOneSided makes an end of a one-sided connection, on the first NIC: peers know only its key of what is exported.
func (w *Wire) newOneSided(access ib.Access) (*data, ib.Address, error) {
	nic := w.data[0].Conn.(*verbs.Conn).NIC()
	if nic.Index() != 0 {
		return nil, ib.Address{}, fmt.Errorf("the first RDMA devices do not reach each other, and %s is not one: %w", nic.Name(),
			fault.ErrNotSupported)
	}
	c, addr, err := verbs.New(nic, w.node.config.Find, access)
	if err != nil {
		return nil, addr, err
	}
	d := &data{Conn: c, oneSided: true}
	c.Begin(sink{w, oneSidedIndex})
	d.end = end{fd: c.FD(), ready: func() bool { return w.move(d) }, told: c.Told, arm: c.Arm}
	if err := w.join(d); err != nil {
		c.Close()
		return nil, addr, err
	}
	return d, addr, nil
}

// join adds a one-sided connection to those of the wire.
func (w *Wire) join(d *data) error {
	s := &w.oneSided
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

// drop ends a one-sided connection that is of no use.
func (w *Wire) drop(d *data) {
	s := &w.oneSided
	s.adding.Lock()
	lanes := slices.DeleteFunc(slices.Clone(w.every()), func(x *data) bool { return x == d })
	s.lanes.Store(&lanes)
	s.adding.Unlock()
	w.node.poll.remove(&d.end)
	d.Close()
}

// shut lets nobody make further connections, and returns all that there are.
func (s *oneSided) shut() []*data {
	s.adding.Lock()
	defer s.adding.Unlock()
	s.ended = true
	return *s.lanes.Load()
}

// askedOneSided handles the peer's word that it has made, or made anew, its end of the connection for what it puts.
func (w *Wire) askedOneSided(body []byte) error {
	addr, err := ib.ParseAddress(body)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", frame.ErrFrame, err)
	case !w.apart:
		return fmt.Errorf("%w: it makes a queue pair, and none carry the data", frame.ErrFrame)
	}
	t := &w.oneSided.theirs
	t.Lock()
	defer t.Unlock()
	var mine ib.Address
	first := t.conn == nil
	if first {
		t.conn, mine, err = w.newOneSided(ib.RemoteWrite | ib.RemoteRead)
	} else {
		mine, err = t.conn.Conn.(*verbs.Conn).Renew(nil)
		t.conn.err = nil
	}
	if err == nil {
		err = t.conn.Conn.(*verbs.Conn).Connect(addr, fmt.Sprint("rank ", w.peer))
	}
	switch {
	case err == nil:
		w.control.tell(controlMade, mine.Append(nil), false)
	case errors.Is(err, fault.ErrClosed): // the wire ends
	case first:
		if t.conn != nil {
			w.drop(t.conn)
			t.conn = nil
		}
		text := err.Error()
		w.control.tell(controlNotMade, []byte(text[:min(len(text), transport.MaxText)]), false)
	default:
		return lostRail(fmt.Sprintf("of rank %d: %v", w.node.config.Rank, err))
	}
	return nil
}

// answeredOneSided handles the peer's answer: it has connected its end.
func (w *Wire) answeredOneSided(body []byte) error {
	addr, err := ib.ParseAddress(body)
	m := &w.oneSided.mine
	m.Lock()
	defer m.Unlock()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", frame.ErrFrame, err)
	case m.conn == nil:
		return fmt.Errorf("%w: it answers what this rank has not said", frame.ErrFrame)
	}
	err = m.conn.Conn.(*verbs.Conn).Connect(addr, fmt.Sprint("rank ", w.peer))
	if err != nil && !errors.Is(err, fault.ErrClosed) {
		return lostRail(fmt.Sprintf("of rank %d: %v", w.node.config.Rank, err))
	}
	return nil
}

// refusedOneSided handles the peer's answer that it has no end.
func (w *Wire) refusedOneSided(why string) error {
	m := &w.oneSided.mine
	m.Lock()
	defer m.Unlock()
	if m.conn == nil {
		return fmt.Errorf("%w: it answers what this rank has not said", frame.ErrFrame)
	}
	d := m.conn
	m.conn, m.way = nil, &w.data[w.home(0)]
	m.way.Conn.(*verbs.Conn).Adopt(d.Conn.(*verbs.Conn))
	w.drop(d)
	w.noOneSided(errors.New(why))
	return nil
}

// oneSidedFailed handles the failure of a one-sided connection. This rank's is made anew if the peer has refused what it wrote. Else
// the control connection will tell why, or the peer makes it anew.
func (w *Wire) oneSidedFailed(d *data) {
	m, t := &w.oneSided.mine, &w.oneSided.theirs
	m.Lock()
	if mine := d == m.conn; mine {
		w.renew(d)
	}
	m.Unlock()
	t.Lock()
	if d == t.conn {
		d.failed(d.Conn.(*verbs.Conn).End())
	}
	t.Unlock()
}

// renew makes this rank's one-sided connection anew. The caller holds the lock.
func (w *Wire) renew(d *data) {
	c := d.Conn.(*verbs.Conn)
	err := c.End()
	if verbs.Refused(err) {
		var addr ib.Address
		if addr, err = c.Renew(w.denied); err == nil {
			w.node.config.Log.Info("network: the peer's memory has refused a write or a read", "peer", w.peer)
			w.control.tell(controlMake, addr.Append(nil), false)
		}
	}
	d.failed(err)
}

// failed notes a one-sided connection's failure.
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

// overdueOneSided ends the wire if a one-sided connection has failed and nothing has come of it.
func (w *Wire) overdueOneSided(now time.Time) {
	var err error
	late := func(d *data) {
		if d != nil && d.err != nil && now.Sub(d.since) > silence {
			err = d.err
		}
	}
	m, t := &w.oneSided.mine, &w.oneSided.theirs
	m.RLock()
	late(m.conn)
	m.RUnlock()
	t.Lock()
	late(t.conn)
	t.Unlock()
	if err != nil && !w.ended.Load() {
		w.cut(lostRail(err.Error()))
	}
}

// Read implements transport.Endpoint. It needs queue pairs.
func (l *Link) Read(t transport.Target, p unsafe.Pointer, n int, r *transport.Result) bool {
	h := l.target(frame.Read, t, n)
	return l.direct(t, func(c *verbs.Conn, sent *atomic.Uint64) bool { return c.Read(h, p, sent, r) })
}

// WriteDevice implements transport.Endpoint.
func (l *Link) WriteDevice(t transport.Target, p unsafe.Pointer, n int) bool {
	h := l.target(frame.Write, t, n)
	return l.direct(t, func(c *verbs.Conn, sent *atomic.Uint64) bool { return c.PutDevice(h, p, sent) })
}

// direct begins what f does on the one-sided connection, and reports whether f did.
func (l *Link) direct(t transport.Target, f func(c *verbs.Conn, sent *atomic.Uint64) bool) (begun bool) {
	w := l.wire.Load()
	if w == nil || !w.apart || t.Region.Key == 0 {
		return false
	}
	l.putting.Lock()
	defer l.putting.Unlock()
	if !l.up || l.closed.Load() {
		return false
	}
	w.puts(func(d *data) {
		if d.oneSided {
			o := l.order.Load()
			if begun = f(d.Conn.(*verbs.Conn), &o.sent[oneSidedIndex]); begun {
				l.oneSided = true
				l.queued.Add(1)
				o.add(oneSidedIndex)
			}
		}
	})
	return begun
}

// target is the head of what goes to or comes from a target.
func (l *Link) target(k frame.Kind, t transport.Target, n int) frame.Header {
	return frame.Header{Kind: k, Place: t.Slot, Comm: l.id, Seq: t.Key, Length: uint64(n), Offset: t.Offset,
		Landing: frame.Landing{Address: t.Region.Address, Keys: [mr.MostNICs]uint64{uint64(t.Region.Key)}}}
}
