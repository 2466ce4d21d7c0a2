package net

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/rdm"
	"github.com/ubcoll/ubcoll/internal/transport/net/tcp"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
)

const (
	silence = time.Second     // how long the control connection has to say why a data connection ended
	closure = 5 * time.Second // how long a peer that said bye has to end its stream
)

// Wire connects this process to a peer. Its methods are safe for concurrent use.
type Wire struct {
	node    *Node
	peer    int
	attempt [16]byte // by which it was made
	name    string   // see Link.Name
	control control
	data    []data
	rails   []path // that the data connections of TCP go over
	several bool   // rails, or NICs
	homes   []int  // those of the first rail, or NIC
	down    atomic.Pointer[transport.Down]
	ended   atomic.Bool  // some goroutine ends it
	linked  atomic.Bool  // it has or had a link, so its end is reported
	idle    atomic.Int64 // empty polls so far

	isolated atomic.Bool  // see Node.isolate
	silentAt atomic.Int64 // when the peer's kernel was last found not to answer
	answered atomic.Int64 // when the peer's process last answered controlAsk

	pacing sync.Mutex                           // held by goroutines that choose a connection
	chosen float64                              // bytes of all puts for which one was; guarded by pacing
	mu     sync.Mutex                           // held by goroutines that change links
	links  atomic.Pointer[map[uint64]*Link]     // by communicator, until both sides have closed theirs
	recent atomic.Pointer[Link]                 // the one last looked up
	asked  map[uint64]int                       // how many places the peer wants, by communicators that have not joined; held by the node's lock
	overs  map[uint64]uint32                    // what Link.over will be, by communicators that have no link
	part   struct{ data, control atomic.Int64 } // when a part was seen to end, or data came after that

	shut struct{ data, control bool } // by Close

	rdma     *landings // over devices that reach registered memory themselves
	apart    bool      // one-sided operations have connections of their own
	oneSided oneSided
}

// data is a data connection.
type data struct {
	frame.Conn
	rail     int       // of the wire's
	oneSided bool      // for one-sided operations; then only Conn, end, since and err are used
	apart    bool      // that is not the control connection's
	since    time.Time // when it was first found not to answer; the node's goroutine's, or guarded by the lock of oneSided
	asked    time.Time // over libfabric, when the peer was asked about that; the node's goroutine's, as the next two
	left     clock.Deadline
	acts     uint64 // what had completed there
	pace     pace   // guarded by Wire.pacing
	end      end
	over     atomic.Bool // nothing more comes on it
	err      error       // why; written before over; or guarded by the lock of oneSided
}

// wire makes a wire of connected sockets. If it cannot, it closes them.
func (n *Node) wire(peer int, fds []int, pairs []device, attempt [16]byte) (*Wire, error) {
	w := &Wire{node: n, peer: peer, attempt: attempt, name: "tcp", data: make([]data, len(fds)-1+len(pairs)), asked: map[uint64]int{},
		overs: map[uint64]uint32{}}
	if pairs != nil {
		w.rdma = newLandings()
	}
	w.lay(fds, pairs)
	w.links.Store(&map[uint64]*Link{})
	w.control.wire, w.control.fd = w, fds[0]
	w.control.end = end{fd: fds[0], ready: w.hear}
	var lanes []*data
	for i := range w.data {
		d := &w.data[i]
		lanes = append(lanes, d)
		if pairs != nil {
			d.Conn = pairs[i]
			switch c := pairs[i].(type) {
			case *verbs.Conn:
				d.end = end{fd: c.FD(), ready: func() bool { return w.move(d) }, told: c.Told, arm: c.Arm}
				c.Begin(sink{w, i})
				w.apart = true
			case *rdm.Conn:
				d.end.none = true
				c.Begin(sink{w, i}, func() bool { return w.move(d) })
			}
			continue
		}
		d.end = end{fd: fds[1+i], ready: func() bool { return w.move(d) }}
		d.Conn = tcp.New(fds[1+i], sink{w, i}, func(room bool) { n.poll.want(&d.end, room) })
	}
	w.oneSided.lanes.Store(&lanes)
	n.retire(peer)
	n.mu.Lock()
	var err error
	for _, e := range w.sockets() { // also while Close waits for handshakes: the peer may have its end, and Close says bye
		if err == nil {
			err = n.poll.add(e)
		}
	}
	if err == nil {
		n.forget(peer)
		n.wires[peer] = w
		p := n.contact(peer)
		p.last = attempt
		p.interrupt(errArrived)
		if n.running == nil {
			n.running = make(chan struct{})
			go n.serve()
		}
	}
	n.mu.Unlock()
	if err != nil {
		w.close()
		return nil, err
	}
	if n.cut.off() {
		if err := n.isolate(w); err != nil {
			n.config.Log.Warn("network: a connection is not cut", "peer", peer, "err", err)
		}
	}
	return w, nil
}

// retire ends a wire to a peer with which another was made: one of the two has found it cut.
func (n *Node) retire(peer int) {
	n.mu.Lock()
	w := n.connected(peer)
	n.mu.Unlock()
	if w == nil {
		return
	}
	for w.finish(transport.Cut, errReplaced); w.Err() == nil; { // another goroutine is ending it, for a reason of its own
		time.Sleep(time.Millisecond)
	}
}

var errReplaced = errors.New("the peer found the connection cut, and makes it anew")

// sockets returns all sockets, data before control: a peer that dies ends all at once, and data that came before must
// be taken.
func (w *Wire) sockets() []*end {
	var all []*end
	for i := range w.data {
		if e := &w.data[i].end; !e.none {
			all = append(all, e)
		}
	}
	return append(all, &w.control.end)
}

// close closes all sockets. Once it returns, no memory of a caller is in use.
func (w *Wire) close() {
	lanes := w.oneSided.shut()
	for _, d := range lanes {
		w.node.poll.remove(&d.end)
	}
	w.node.poll.remove(&w.control.end)
	for _, d := range lanes {
		d.Close()
	}
	w.control.close()
}

// Err says why the wire is no longer of use, or is nil. It costs one load.
func (w *Wire) Err() *transport.Down { return w.down.Load() }

// tell sends m on the control connection. It never blocks: messages that the peer has not read yet are kept here. If
// the peer leaves 80 KiB unread and m may be lost, it is, and the log says so. After Err it does nothing.
func (w *Wire) tell(m transport.Message) {
	if !w.control.tell(controlTell, encodeMessage(m), m.MayBeLost) {
		w.node.config.Log.Warn("network: a message was dropped: the peer reads none", "peer", w.peer, "kind", m.Kind)
	}
}

// hear reads the control connection and sends what is queued for it.
func (w *Wire) hear() bool {
	w.heard(w.control.receive())
	w.control.send()
	return true
}

// heard handles the result of receiving on the control connection.
func (w *Wire) heard(err error) {
	switch {
	case err == nil || w.ended.Load():
	case errors.Is(err, io.EOF):
		if w.part.control.CompareAndSwap(0, time.Now().UnixNano()) {
			w.node.poll.remove(&w.control.end)
		}
		w.settle()
	case errors.Is(err, frame.ErrFrame), errors.Is(err, errTold):
		w.finish(transport.Broken, err)
	case errors.As(err, new(lostRail)):
		w.finish(transport.Cut, err)
	case w.control.leaving():
		w.finish(transport.Left, errClosed)
	default:
		w.lost("its connection has ended", w.control.rail, err)
	}
}

// silent reports whether the peer's kernel does not answer, or did not a moment ago: the last packet of a peer that has
// given up may still acknowledge something.
func (w *Wire) silent(now time.Time) bool {
	if w.control.silent() || w.node.cut.off() {
		w.silentAt.Store(now.UnixNano())
	}
	return now.Sub(time.Unix(0, w.silentAt.Load())) < 2*silence
}

// lost ends the wire after an error of a socket. If packets get lost in one direction only, the peer may give up first,
// and its end of stream may arrive. If its kernel did not answer before, that does not mean that its process died.
func (w *Wire) lost(what string, rail int, err error) {
	switch {
	case noRoute(err) && len(w.rails) > 1:
		w.finish(transport.Cut, fmt.Errorf("%s: %w", w.noAnswer(rail), err))
	case noRoute(err):
		w.finish(transport.Cut, fmt.Errorf("no answer for %v (%s): %w", w.node.config.Timeout, env.NetTimeout.Name, err))
	case w.silent(time.Now()):
		w.finish(transport.Cut, fmt.Errorf("no answer before: %w", err))
	default:
		w.finish(transport.Died, fmt.Errorf("%s: %w", what, err))
	}
}

// move receives on a data connection, sends what is queued there, and reports whether anything came.
func (w *Wire) move(d *data) bool {
	moved, err := d.Receive()
	switch {
	case err == nil:
	case d.oneSided:
		w.oneSidedFailed(d)
	case !d.over.Load():
		w.over(d, err)
	}
	if moved && w.part.control.Load() != 0 { // the peer has said bye, and its earlier puts are still arriving
		w.part.control.Store(time.Now().UnixNano())
	}
	if d.Queued() > 0 {
		d.Flush()
	}
	return moved
}

// broken handles the end of queue pairs that take no more work.
func (w *Wire) broken() {
	for _, d := range w.every() {
		if c, ok := d.Conn.(device); ok && c.Broken() {
			w.move(d)
		}
	}
}

// over handles the end of a data connection. The control connection will tell why it ended.
func (w *Wire) over(d *data, err error) {
	w.mu.Lock()
	first := !d.over.Load()
	if first {
		d.err = err
		d.over.Store(true)
	}
	w.mu.Unlock()
	if !first || w.ended.Load() {
		return
	}
	w.node.poll.remove(&d.end)
	if errors.Is(err, frame.ErrFrame) {
		w.finish(transport.Broken, err)
		return
	}
	w.part.data.CompareAndSwap(0, time.Now().UnixNano())
	w.heard(w.control.receive())
	w.settle()
}

// settle ends the wire once the peer's bye and the end of all streams have come.
func (w *Wire) settle() {
	if w.part.control.Load() == 0 {
		return
	}
	if w.apart { // the peer says bye once all has arrived
		for _, d := range w.every() {
			_ = d.Drain()
			d.over.Store(true)
		}
	}
	for i := range w.data {
		if !w.data[i].over.Load() {
			return
		}
	}
	w.finish(transport.Left, fmt.Errorf("it has closed its network"))
}

// overdue ends a wire if a part of it has ended and the rest does not follow in time.
func (w *Wire) overdue(now time.Time) {
	if w.ended.Load() {
		return
	}
	since := func(t *atomic.Int64) time.Duration {
		if v := t.Load(); v != 0 {
			return now.Sub(time.Unix(0, v))
		}
		return 0
	}
	limit := closure
	if w.control.leaving() { // then nobody here needs what might still come
		limit = silence
	}
	switch {
	case since(&w.part.control) > limit:
		w.finish(transport.Left, errors.New("it has closed its network"))
	case since(&w.part.data) > silence && w.part.control.Load() == 0 && !w.control.leaving():
		for i := range w.data {
			switch d := &w.data[i]; {
			case !d.over.Load():
			case w.rdma != nil: // the peer lives, as far as its kernel says
				w.cut(lostRail(d.err.Error()))
			default:
				w.lost("a data connection has ended", d.rail, d.err)
			}
		}
	}
}

// cut ends the wire over what has happened to one of its ways, and tells the peer.
func (w *Wire) cut(err lostRail) {
	w.control.tell(controlCut, []byte(err[:min(len(err), transport.MaxText)]), false)
	w.finish(transport.Cut, err)
}

// finish ends the wire.
func (w *Wire) finish(kind transport.DownKind, err error) {
	if w.ended.Swap(true) {
		return
	}
	if kind == transport.Broken && errors.Is(err, frame.ErrFrame) {
		text := err.Error()
		w.control.tell(controlBroken, []byte(text[:min(len(text), transport.MaxText)]), false)
	}
	if kind == transport.Died || kind == transport.Cut {
		for _, d := range w.every() { // data that came before the end still lands
			_ = d.Drain()
		}
	}
	if kind != transport.Left {
		w.doubt()
	}
	w.close()
	d := &transport.Down{Kind: kind, Peer: w.peer, Err: err}
	w.down.Store(d)
	for _, l := range *w.links.Load() {
		l.settle()
		if w.rdma != nil {
			l.unclaimAll()
		}
	}
	w.node.config.Log.Info("network: a wire has ended", "peer", w.peer, "err", err)
	if kind != transport.Left && w.linked.Load() && w.node.config.Down != nil {
		w.node.config.Down(w.peer, d)
	}
}

// leave ends the wire in order, as far as it can without waiting: data, bye, end of stream. It reports whether the wire
// has ended.
func (w *Wire) leave() bool {
	if w.ended.Load() {
		return true
	}
	if !w.shut.data {
		for _, d := range w.every() {
			if d.Queued() > 0 {
				d.Flush()
				return false
			}
		}
		for _, d := range w.every() {
			d.Shut()
		}
		w.control.tell(controlBye, nil, false)
		w.shut.data = true
	}
	if !w.shut.control && w.control.drained() {
		w.control.shut()
		w.shut.control = true
	}
	return w.ended.Load()
}

// left says what leave could not do.
func (w *Wire) left() string {
	puts := 0
	for _, d := range w.every() {
		puts += d.Queued()
	}
	switch {
	case w.ended.Load():
		return ""
	case puts > 0:
		return fmt.Sprintf("has not taken %d puts", puts)
	case !w.shut.control:
		return "has not read what it was told"
	}
	return "has not closed its end"
}

// forget removes a link of the peer that waits for its communicator to join, and returns whether there was one. The
// caller holds mu.
func (w *Wire) forget(comm uint64) bool {
	w.node.mu.Lock()
	defer w.node.mu.Unlock()
	_, there := w.asked[comm]
	delete(w.asked, comm)
	return there
}

// all is Link.over once nothing more comes.
func (w *Wire) all() uint32 { return 1<<len(w.data) - 1 }

// put sets the link of a communicator; nil removes it. The caller holds mu.
func (w *Wire) put(comm uint64, l *Link) {
	links := maps.Clone(*w.links.Load())
	if old := links[comm]; l == nil && old != nil && w.rdma != nil {
		w.rdma.free(old.id)
	}
	if links[comm] = l; l == nil {
		delete(links, comm)
	}
	w.links.Store(&links)
	w.recent.Store(nil)
}
