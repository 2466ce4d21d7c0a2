package net

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
	"github.com/ubcoll/ubcoll/internal/transport/net/verbs"
	"github.com/ubcoll/ubcoll/register"
)

// Link is one communicator's use of a wire. It implements transport.Endpoint.
type Link struct {
	id     uint64 // of the communicator
	places []place
	wire   atomic.Pointer[Wire] // nil before there is one

	putting  sync.Mutex // held by goroutines that put, or change one of these
	up       bool       // the peer has made its side
	oneSided bool       // something was put on the wire's one-sided connection
	lost     bool       // the peer has revoked something: see place
	closed   atomic.Bool
	over     atomic.Uint32 // bit i: no more of it will come on data connection i
	down     atomic.Pointer[transport.Down]
	queued   atomic.Uint64
	sent     atomic.Uint64
	order    atomic.Pointer[order] // of the puts over a wire of several data connections; else nil
	early    []early               // frames from before up; those of kind 0 are withdrawn writes, which count after what is before them

	node     *Node
	comm     *comm
	server   transport.Server // nil: the peer writes and calls nothing
	peer     int
	made     chan struct{} // closed once the link is up or down
	settle   func()        // closes it
	cancel   context.CancelCauseFunc
	refused  bool       // by the peer; held by the wire's lock
	ending   sync.Mutex // held by the goroutine that closes
	landing  sync.Mutex // of several data connections, held by the one that changes what places have received
	called   []byte     // a call of the peer; the receiving goroutine's
	revoking atomic.Int64
}

// early is a frame that waits for the peer's side.
type early struct {
	h frame.Header
	p unsafe.Pointer
}

// place has a cache line for what the peer puts here, and one for what the peer has granted there.
type place struct {
	word    atomic.Uint64
	landed  atomic.Int64
	granted atomic.Uint64
	p       unsafe.Pointer // set by the grant; the receiving goroutine reads it after granted
	n       int
	device  bool   // p is memory of a device
	done    uint64 // sequences up to this have landed or were revoked; this and the next two are the receiving goroutine's, or guarded by landing
	part    uint64 // the last sequence of which parts have landed
	came    int    // how many bytes

	theirs struct {
		granted atomic.Uint64
		room    atomic.Int64
		landing frame.Landing // of granted, over RDMA; written before granted
		revoked uint64        // up to here; this and the next two are guarded by putting
		by      uint8         // the connection that the last put took, plus 1; 0: none
		behind  bool          // the last put answered no grant
	}
	acks  uint8                          // connections that have acknowledged the revocation; as done
	index uint32                         // over RDMA, what the peer calls the place by; 0: nothing yet
	claim atomic.Pointer[register.Claim] // over RDMA, on p: the peer may write there
}

// cameOf is how many bytes of a sequence have come in parts. Those of one that was revoked before its end are forgotten.
func (x *place) cameOf(seq uint64) int {
	if x.part != seq {
		return 0
	}
	return x.came
}

// link makes the communicator's link to a peer; both are locked. cancel ends what makes it.
func (c *comm) link(n *Node, peer int, cancel context.CancelCauseFunc) *Link {
	l := &Link{id: c.ID, node: n, comm: c, peer: peer, places: make([]place, c.Places), made: make(chan struct{}), cancel: cancel}
	l.settle = sync.OnceFunc(func() { close(l.made) })
	c.links[peer] = l
	if c.Made != nil {
		l.server = c.Made(l)
	}
	return l
}

// Peer implements transport.Endpoint.
func (l *Link) Peer() int { return l.peer }

// Name implements transport.Endpoint.
func (l *Link) Name() string {
	if w := l.wire.Load(); w != nil {
		return w.name
	}
	return ""
}

// Connections implements transport.Endpoint.
func (l *Link) Connections() int {
	if w := l.wire.Load(); w != nil {
		return len(w.data)
	}
	return 1
}

// make connects, and waits until the peer has made its side, or ctx ends.
func (l *Link) make(ctx context.Context, expected bool) {
	defer l.settle()
	w, err := l.node.connect(ctx, l.peer, expected)
	if err == nil {
		err = l.attach(w, false)
	}
	if err == nil {
		select {
		case <-l.made:
			return
		case <-ctx.Done():
			err = fmt.Errorf("network: rank %d has not made its side of the communicator: %w", l.peer, late(ctx))
		}
	}
	select {
	case <-l.made: // before that, by a wire that the peer has made, and perhaps it is closed again
		return
	default:
	}
	d, lost := errors.AsType[*transport.Down](err)
	if !lost {
		d = &transport.Down{Kind: transport.Unreached, Peer: l.peer, Err: err}
	}
	l.fail(d)
}

// late is why ctx has ended: its cause, which is a timeout unless somebody knows better.
func late(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, ok := errors.AsType[*fault.Error](cause); ok {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, fault.ErrTimeout)
}

// Ready implements transport.Endpoint.
func (l *Link) Ready(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.cancel(context.Cause(ctx)) })
	<-l.made
	stop()
	switch d := l.Err(); {
	case d == nil:
		return nil
	case d.Kind == transport.Unreached:
		return d.Err
	default:
		return d
	}
}

// attach gives the link its wire, unless it has one, and tells the peer. If the peer's side has waited for it, it must
// wait still: its end has been answered otherwise.
func (l *Link) attach(w *Wire, waited bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.putting.Lock()
	defer l.putting.Unlock()
	if waited && !w.forget(l.id) {
		return refusal(w.peer)
	}
	old, there := l.wire.Load(), (*w.links.Load())[l.id]
	switch {
	case l.closed.Load(), l.down.Load() != nil, old != nil && old != w, there != nil && there != l:
		return fmt.Errorf("network: the communicator's link to rank %d has ended: %w", l.peer, fault.ErrClosed)
	case old == w:
		return nil
	}
	w.linked.Store(true)
	if d := w.Err(); d != nil { // perhaps before linked was set, so that nobody was told
		return d
	}
	w.put(l.id, l)
	if len(w.data) > 1 || w.rdma != nil {
		l.order.Store(new(order))
	}
	l.over.Store(w.overs[l.id])
	delete(w.overs, l.id)
	l.wire.Store(w)
	w.data[0].Put(frame.Header{Kind: frame.Open, Comm: l.id, Place: uint32(len(l.places))}, nil, nil)
	if w.Err() != nil { // its end has perhaps missed this link
		l.settle()
	}
	return nil
}

// rise sends what was kept: the peer has made its side.
func (l *Link) rise() {
	l.putting.Lock()
	if !l.up && !l.closed.Load() {
		l.up = true
		for _, e := range l.early {
			l.send(e.h, e.p)
		}
		l.early = nil
	}
	l.putting.Unlock()
	l.settle()
}

// send sends a frame, or keeps it until the peer has made its side. The caller holds putting.
func (l *Link) send(h frame.Header, p unsafe.Pointer) {
	put, served := h.Kind == frame.Put, h.Kind.Served()
	switch {
	case h.Kind == 0, (put || served) && l.closed.Load(), put && h.Seq <= l.places[h.Place].theirs.revoked:
		switch o, w := l.order.Load(), l.wire.Load(); {
		case o != nil:
			o.skip()
		case w != nil:
			w.data[0].Skip(l.id, &l.sent)
		default:
			l.sent.Add(1)
		}
	case l.closed.Load() || !l.up && l.down.Load() != nil:
	case !l.up:
		if h.Kind == frame.Call { // its memory may be changed
			p = unsafe.Pointer(unsafe.SliceData(bytes.Clone(unsafe.Slice((*byte)(p), h.Length))))
		}
		l.early = append(l.early, early{h, p})
	case put:
		l.put(h, p)
	case served:
		l.serve(h, p, false)
	default:
		w := l.wire.Load()
		if h.Kind == frame.Grant && w.rdma != nil {
			h.Landing = l.land(w, int(h.Place))
		}
		for i := range w.data {
			if h.Kind == frame.Revoke || i == w.home(int(h.Place)) { // the peer's put may be on any connection
				w.data[i].Queue(h, nil, nil)
			}
		}
		l.node.said.Store(true)
	}
}

// put sends a put. The caller holds putting.
func (l *Link) put(h frame.Header, p unsafe.Pointer) {
	w, o := l.wire.Load(), l.order.Load()
	if w.rdma != nil {
		if x := &l.places[h.Place].theirs; x.granted.Load() == h.Seq {
			h.Landing = x.landing
		}
	}
	if o == nil {
		w.data[0].Put(h, p, &l.sent)
		return
	}
	i := l.choose(w, h)
	o.add(i)
	w.data[i].Put(h, p, &o.sent[i])
}

// serve sends a write or a call, and reports whether devices move it. All take one connection, so that they stay in order. The
// caller holds putting.
func (l *Link) serve(h frame.Header, p unsafe.Pointer, more bool) (devices bool) {
	w, o := l.wire.Load(), l.order.Load()
	w.puts(func(d *data) {
		i, sent := w.home(0), &l.sent
		if d.oneSided {
			i, l.oneSided = oneSidedIndex, true
		} else {
			h.Landing = frame.Landing{} // a key that is no good would fail what carries all else
		}
		if o != nil {
			o.add(i)
			sent = &o.sent[i]
		}
		if d.oneSided {
			devices = d.Conn.(*verbs.Conn).Write(h, p, sent)
		} else if more {
			d.Queue(h, p, sent)
		}
		switch {
		case more:
			l.node.said.Store(true)
		case d.oneSided:
			d.Flush()
		default:
			d.Put(h, p, sent)
		}
	})
	return devices
}

// fail ends the link for a reason of its own.
func (l *Link) fail(d *transport.Down) {
	l.putting.Lock()
	if l.down.CompareAndSwap(nil, d) {
		l.early = nil
	}
	l.putting.Unlock()
	l.settle()
}

// Post implements transport.Endpoint.
func (l *Link) Post(place int, seq uint64, p unsafe.Pointer, n int) {
	x := &l.places[place]
	x.p, x.n, x.device = p, n, false
	x.granted.Store(seq)
}

// Grant implements transport.Endpoint.
func (l *Link) Grant(place int, seq uint64, p unsafe.Pointer, n int) {
	l.Post(place, seq, p, n)
	l.say(frame.Grant, place, seq, n)
}

// say queues a frame without payload, which leaves with the next put or progress.
func (l *Link) say(kind frame.Kind, place int, seq uint64, n int) {
	l.putting.Lock()
	l.send(frame.Header{Kind: kind, Place: uint32(place), Comm: l.id, Seq: seq, Length: uint64(n)}, nil)
	l.putting.Unlock()
}

// Granted implements transport.Endpoint.
func (l *Link) Granted(place int) *atomic.Uint64 { return &l.places[place].theirs.granted }

// Room implements transport.Endpoint.
func (l *Link) Room(place int) int { return int(l.places[place].theirs.room.Load()) }

// Revoke implements transport.Endpoint.
func (l *Link) Revoke(place int, seq uint64) {
	l.revoking.Add(1)
	l.say(frame.Revoke, place, seq, 0)
}

// Revoking implements transport.Endpoint. After either side has closed, or Err, nothing is left to acknowledge.
func (l *Link) Revoking() int {
	if l.closed.Load() || l.Err() != nil {
		return 0
	}
	if w := l.wire.Load(); w != nil && w.whole(l.over.Load()) {
		return 0
	}
	return int(l.revoking.Load())
}

// Word implements transport.Endpoint.
func (l *Link) Word(place int) *atomic.Uint64 { return &l.places[place].word }

// Landed implements transport.Endpoint.
func (l *Link) Landed(place int) int { return int(l.places[place].landed.Load()) }

// Put implements transport.Endpoint. It sends what the kernel takes at once, and queues the rest, which any progress
// sends.
func (l *Link) Put(place int, seq uint64, p unsafe.Pointer, n int) {
	h := frame.Header{Kind: frame.Put, Place: uint32(place), Comm: l.id, Seq: seq, Length: uint64(n)}
	l.putting.Lock()
	l.queued.Add(1)
	if l.up && !l.lost && !l.closed.Load() { // as send does, with less to look at, since this counts
		l.put(h, p)
	} else {
		l.send(h, p)
	}
	l.putting.Unlock()
}

// Write implements transport.Endpoint. With more it leaves with what is written, called or put next, or at the next Poll
// or progress.
func (l *Link) Write(t transport.Target, p unsafe.Pointer, n int, more bool) (devices bool) {
	return l.ask(l.target(frame.Write, t, n), p, more)
}

// Call implements transport.Endpoint.
func (l *Link) Call(b []byte) {
	l.ask(frame.Header{Kind: frame.Call, Comm: l.id, Length: uint64(len(b))}, unsafe.Pointer(unsafe.SliceData(b)), false)
}

// ask is Put of a write or a call. It reports whether devices move it.
func (l *Link) ask(h frame.Header, p unsafe.Pointer, more bool) (devices bool) {
	l.putting.Lock()
	l.queued.Add(1)
	if l.up && !l.closed.Load() {
		devices = l.serve(h, p, more)
	} else {
		l.send(h, p)
	}
	l.putting.Unlock()
	return devices
}

// Withdraw implements transport.Endpoint. A frame that has begun is completed from a copy.
func (l *Link) Withdraw(t transport.Target) {
	l.withdraw(t)
	if w := l.wire.Load(); w != nil && w.apart {
		var c *verbs.Conn
		w.putsIf(func(d *data) { c = d.Conn.(*verbs.Conn) })
		if c != nil { // what has left is still read
			c.Await(l.id, t.Slot, t.Key)
		}
	}
}

func (l *Link) withdraw(t transport.Target) {
	l.putting.Lock()
	defer l.putting.Unlock()
	kept, waits := l.early[:0], false // whether something before it waits to count
	for _, e := range l.early {
		if e.h.Writes(l.id, t.Slot, t.Key) {
			e = early{}
		}
		switch e.h.Kind {
		case 0:
			if !waits {
				l.sent.Add(1)
				continue
			}
		case frame.Put, frame.Write, frame.Call:
			waits = true
		}
		kept = append(kept, e)
	}
	clear(l.early[len(kept):])
	l.early = kept
	if w := l.wire.Load(); w != nil {
		w.putsIf(func(d *data) { d.WithdrawWrites(l.id, t.Slot, t.Key) })
	}
}

// Refuse implements transport.Endpoint. The rest of a frame that is under way is read and dropped, and the Server is asked
// about each later one.
func (l *Link) Refuse(t transport.Target) {
	if w := l.wire.Load(); w != nil {
		for _, d := range w.every() {
			d.Stop(func(h frame.Header) bool { return h.Writes(l.id, t.Slot, t.Key) })
		}
	}
}

// Queued implements transport.Endpoint.
func (l *Link) Queued() uint64 { return l.queued.Load() }

// Sent implements transport.Endpoint.
func (l *Link) Sent() uint64 {
	o := l.order.Load()
	if o == nil {
		return l.sent.Load()
	}
	l.putting.Lock()
	defer l.putting.Unlock()
	return l.sent.Load() + o.count()
}

// Tell implements transport.Endpoint.
func (l *Link) Tell(m transport.Message) {
	if w := l.wire.Load(); w != nil {
		w.tell(m)
	}
}

// Err implements transport.Endpoint.
func (l *Link) Err() *transport.Down {
	if w := l.wire.Load(); w != nil {
		if d := w.Err(); d != nil {
			return d
		}
	}
	return l.down.Load()
}

// looked is how many empty polls pass between looks at everything else that the node has.
const looked = 128

// Poll implements transport.Endpoint. If there is nothing to do it costs one system call. Now and then it also does
// what Progress does.
func (l *Link) Poll() {
	w := l.wire.Load()
	if w == nil {
		l.node.Progress()
		return
	}
	l.node.moves()
	l.node.speak() // before receiving, which can take long: a peer may wait for a grant
	moved := false
	for _, d := range w.every() {
		moved = w.move(d) || moved
	}
	if !moved && w.idle.Add(1)%looked == 0 {
		l.node.progress()
	}
}

// Close implements transport.Endpoint. A frame that has begun is completed from a copy. What comes for the communicator
// later is read and dropped, until the peer says that it has closed its side, as Close tells the peer now.
func (l *Link) Close() {
	l.ending.Lock()
	defer l.ending.Unlock()
	l.putting.Lock()
	again, up, also, w := l.closed.Swap(true), l.up, l.oneSided, l.wire.Load()
	for _, e := range l.early {
		switch e.h.Kind {
		case 0, frame.Put, frame.Write, frame.Call:
			l.sent.Add(1)
		}
	}
	l.early = nil
	l.putting.Unlock()
	if again {
		return
	}
	if !up {
		l.fail(&transport.Down{Kind: transport.Left, Peer: l.peer, Err: errLinkClosed})
	}
	l.cancel(fault.ErrClosed) // after that was said: who makes the link would say something else
	if w == nil {
		return
	}
	if w.rdma != nil {
		l.takeBack(w)
	}
	w.mu.Lock()
	theirs := !l.refused                        // the peer has a side, or makes one, that waits for this one's end
	if theirs && (*w.links.Load())[l.id] == l { // else the peer's end has come meanwhile: see sink.over
		w.put(l.id, l.rest())
	}
	w.mu.Unlock()
	h := frame.Header{Kind: frame.Over, Comm: l.id}
	if also {
		h.Place = alsoOneSided
	}
	for _, d := range w.every() {
		d.Stop(func(h frame.Header) bool { return h.Comm == l.id })
		d.Drop(l.id)
		if theirs && !d.oneSided {
			d.Put(h, nil, nil) // after all puts
		}
	}
	if also && theirs {
		w.putsIf(func(d *data) { d.Put(h, nil, nil) })
	}
}

var errLinkClosed = errors.New("this rank has closed the communicator")

// rest is what the wire keeps of a closed link, without the caller's memory; nil once no more can come for it.
func (l *Link) rest() *Link {
	over := l.over.Load()
	if l.wire.Load().whole(over) {
		return nil
	}
	r := &Link{id: l.id, settle: func() {}}
	r.wire.Store(l.wire.Load())
	r.over.Store(over)
	r.closed.Store(true)
	return r
}

// ended notes that the peer has closed its side on a connection.
func (l *Link) ended() {
	l.putting.Lock()
	up := l.up
	l.putting.Unlock()
	if !up {
		l.fail(refusal(l.peer))
	}
}

func refusal(peer int) *transport.Down {
	return &transport.Down{Kind: transport.Refused, Peer: peer, Err: fmt.Errorf("rank %d of the job has closed the communicator", peer)}
}
