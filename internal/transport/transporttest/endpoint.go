package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// endpoint implements transport.Endpoint.
type endpoint struct {
	s        *side
	comm     transport.Comm
	server   transport.Server // nil: the peer writes and calls nothing
	places   []*place
	making   chan struct{} // closed when Comm.Made has returned
	using    atomic.Bool   // a goroutine posts, grants, puts or revokes
	serving  sync.Mutex    // held while a method of server runs and what it names is written; comes before the fabric's mu
	down     atomic.Pointer[transport.Down]
	queued   atomic.Uint64
	sent     atomic.Uint64
	revoking atomic.Int64

	inMade bool      // Comm.Made runs
	tellAt time.Time // when the peer is told of this side, if it has not told of its own
	told   bool
	made   bool // the peer has told of its side
	closed bool

	out      []*message // not sent yet
	flying   []*message // sent, and not received yet
	puts     []*message // not counted as sent yet
	receives int        // posted, of a two-sided fabric
}

// place is what both sides know of one. What comes first is for this node's puts, what comes last for the peer's.
type place struct {
	granted atomic.Uint64
	room    atomic.Int64
	stopped uint64 // sequences up to this are revoked by the peer
	put     uint64 // the last one that was sent

	word   atomic.Uint64
	landed atomic.Int64
	seq    uint64 // the highest one that was granted or revoked
	open   bool   // there is a grant, which has neither landed nor been revoked
	grant  []byte // its memory
	of     uint64 // its sequence
	posted []byte // the memory of the first Post
	listed bool   // the grant is among the receives of a two-sided fabric
}

func newEndpoint(s *side, c transport.Comm) *endpoint {
	e := &endpoint{s: s, comm: c, making: make(chan struct{})}
	for range c.Places {
		e.places = append(e.places, &place{})
	}
	return e
}

// Peer implements transport.Endpoint.
func (e *endpoint) Peer() int { return e.s.peer }

// Name implements transport.Endpoint.
func (e *endpoint) Name() string {
	e.s.n.f.mu.Lock()
	defer e.s.n.f.mu.Unlock()
	if !e.s.up {
		return ""
	}
	return transportName + " memory"
}

// Connections implements transport.Endpoint.
func (e *endpoint) Connections() int { return 1 }

// Ready implements transport.Endpoint.
func (e *endpoint) Ready(ctx context.Context) error {
	n := e.s.n
	for {
		begin, bell := time.Now(), n.listen()
		n.progress("Ready")
		n.f.mu.Lock()
		// The peer may have told of its side while this one was being added. Without the caller nothing may move afterwards.
		made, closed, d := e.made && e.told, e.closed, e.down.Load()
		n.f.mu.Unlock()
		switch {
		case d != nil:
			return d
		case made:
			return nil
		case closed:
			return fmt.Errorf("this rank has closed its endpoint of rank %d: %w", e.s.peer, fault.ErrClosed)
		case ctx.Err() != nil:
			cause := context.Cause(ctx)
			if why, ok := errors.AsType[*fault.Error](cause); ok {
				return why
			}
			return fmt.Errorf("rank %d has not made its side of the pair: %w: %w", e.s.peer, cause, fault.ErrTimeout)
		}
		t := time.NewTimer(n.due(begin))
		select {
		case <-ctx.Done():
		case <-bell:
		case <-t.C:
		}
		t.Stop()
	}
}

// use begins a call that one goroutine at a time may make, and locks the fabric. It reports whether the call has an
// effect. The caller calls used.
func (e *endpoint) use(call string, place int) bool {
	alone := e.using.CompareAndSwap(false, true)
	f := e.s.n.f
	f.mu.Lock()
	where := fmt.Sprintf("rank %d's endpoint of rank %d: %s of place %d", e.s.n.config.Rank, e.s.peer, call, place)
	switch {
	case !alone:
		f.violated("%s while another goroutine posts, grants, puts or revokes", where)
	case e.inMade && call != "Post":
		f.violated("%s within Comm.Made", where)
	case place < 0 || place >= len(e.places):
		if e.down.Load() == nil {
			f.violated("%s: there are %d", where, len(e.places))
		}
	case !e.s.n.usable(where):
	default:
		return true
	}
	return false
}

func (e *endpoint) used() {
	e.using.Store(false)
	e.s.n.f.mu.Unlock()
}

// Post implements transport.Endpoint.
func (e *endpoint) Post(place int, seq uint64, p unsafe.Pointer, n int) {
	defer e.used()
	if e.use("Post", place) {
		e.grant("Post", place, seq, p, n)
	}
}

// Grant implements transport.Endpoint.
func (e *endpoint) Grant(place int, seq uint64, p unsafe.Pointer, n int) {
	defer e.used()
	if e.use("Grant", place) && e.grant("Grant", place, seq, p, n) {
		e.out = append(e.out, &message{kind: grant, place: place, seq: seq, n: n})
	}
}

// grant reports whether the grant is a good one.
func (e *endpoint) grant(call string, place int, seq uint64, p unsafe.Pointer, n int) bool {
	if e.closed || e.down.Load() != nil {
		return false
	}
	x := e.places[place]
	b := unsafe.Slice((*byte)(p), n)
	wrong := ""
	switch {
	case seq <= x.seq:
		wrong = fmt.Sprintf("sequence %d was there before", x.seq)
	case x.open:
		wrong = fmt.Sprintf("sequence %d has neither landed nor been revoked", x.of)
	case call == "Post" && x.posted != nil && (p != unsafe.Pointer(unsafe.SliceData(x.posted)) || n > len(x.posted)):
		wrong = "the place's first Post was of other memory"
	}
	if wrong != "" {
		e.s.n.f.violated("rank %d's endpoint of rank %d: %s of %d bytes of place %d, sequence %d: %s", e.s.n.config.Rank, e.s.peer,
			call, n, place, seq, wrong)
		return false
	}
	if call == "Post" && x.posted == nil {
		x.posted = b
	}
	x.seq, x.of, x.grant, x.open = seq, seq, b, true
	e.list(x, false)
	return true
}

// list makes a grant one of the receives that are posted to a two-sided fabric, if there is room. If it must be, because
// what it is for has come, another one gives way.
func (e *endpoint) list(x *place, must bool) {
	if x.listed {
		return
	}
	if e.receives == most && must {
		i := slices.IndexFunc(e.places, func(x *place) bool { return x.listed })
		e.places[i].listed = false
		e.receives--
	}
	if e.receives < most {
		x.listed = true
		e.receives++
	}
}

// ungrant ends a place's grant.
func (e *endpoint) ungrant(x *place) {
	x.open, x.grant = false, nil
	if x.listed {
		x.listed = false
		e.receives--
	}
	for _, x := range e.places {
		if x.open {
			e.list(x, false)
		}
	}
}

// Granted implements transport.Endpoint.
func (e *endpoint) Granted(place int) *atomic.Uint64 { return &e.places[place].granted }

// Room implements transport.Endpoint.
func (e *endpoint) Room(place int) int { return int(e.places[place].room.Load()) }

// Revoke implements transport.Endpoint.
func (e *endpoint) Revoke(place int, seq uint64) {
	defer e.used()
	if !e.use("Revoke", place) || e.closed || e.down.Load() != nil {
		return
	}
	x := e.places[place]
	x.seq = max(x.seq, seq)
	e.revoking.Add(1)
	e.out = append(e.out, &message{kind: revoke, place: place, seq: seq})
}

// Revoking implements transport.Endpoint.
func (e *endpoint) Revoking() int { return int(e.revoking.Load()) }

// Put implements transport.Endpoint.
func (e *endpoint) Put(place int, seq uint64, p unsafe.Pointer, n int) {
	defer e.used()
	if !e.use("Put", place) {
		return
	}
	m := &message{kind: put, place: place, seq: seq, n: n, data: unsafe.Slice((*byte)(p), n), rest: [2]int{0, n}}
	e.queue(m, 0 < seq && seq <= e.places[place].stopped, false)
}

// queue counts a message and sends it, if it can and may go now, unless it is to be dropped.
func (e *endpoint) queue(m *message, drop, more bool) {
	f := e.s.n.f
	e.queued.Add(1)
	e.puts = append(e.puts, m)
	switch {
	case e.down.Load() != nil:
		m.data = nil
	case e.closed || drop:
		m.drop()
		e.reap()
	default:
		e.out = append(e.out, m)
		if !f.o.TwoSided && !(more && f.chance(2)) {
			e.flush()
		}
	}
}

// usable reports whether a call has an effect that several goroutines may make at a time; wrong says what is wrong with
// it. A node that is being closed still serves.
func (e *endpoint) usable(call, wrong string) bool {
	n := e.s.n
	where := fmt.Sprintf("rank %d's endpoint of rank %d: %s", n.config.Rank, e.s.peer, call)
	switch {
	case e.inMade:
		n.f.violated("%s within Comm.Made", where)
	case wrong != "":
		n.f.violated("%s: %s", where, wrong)
	case n.closing && !n.over && inServer():
		return true
	default:
		return n.usable(where)
	}
	return false
}

// Write implements transport.Endpoint.
func (e *endpoint) Write(t transport.Target, p unsafe.Pointer, n int, more bool) {
	wrong := noKey(t)
	switch {
	case n < 1:
		wrong = "there has to be one"
	case t.Offset > transport.MaxOffset || uint64(n) > transport.MaxOffset-t.Offset:
		wrong = fmt.Sprintf("they end above offset %d", uint64(transport.MaxOffset))
	}
	f := e.s.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.usable(fmt.Sprintf("Write of %d bytes to key %#x, slot %d, offset %d", n, t.Key, t.Slot, t.Offset), wrong) {
		e.queue(&message{kind: write, to: t, n: n, data: unsafe.Slice((*byte)(p), n), rest: [2]int{0, n}}, false, more)
	}
}

// noKey says what is wrong with a target.
func noKey(t transport.Target) string {
	if t.Key == 0 {
		return "keys begin at 1"
	}
	return ""
}

// Call implements transport.Endpoint.
func (e *endpoint) Call(b []byte) {
	wrong := ""
	if n := len(b); n < 1 || n > transport.MaxCall {
		wrong = fmt.Sprintf("it takes 1 to %d", transport.MaxCall)
	}
	f := e.s.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.usable(fmt.Sprintf("Call of %d bytes", len(b)), wrong) {
		e.queue(&message{kind: call, n: len(b), data: bytes.Clone(b), own: true}, false, false)
	}
}

// Withdraw implements transport.Endpoint. With delays, what is under way may be dropped, too.
func (e *endpoint) Withdraw(t transport.Target) {
	f := e.s.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !e.usable("Withdraw", noKey(t)) {
		return
	}
	withdrawn := func(m *message) bool { return m.kind == write && m.to.Key == t.Key && m.to.Slot == t.Slot }
	e.out = slices.DeleteFunc(e.out, func(m *message) bool {
		if withdrawn(m) {
			m.drop()
		}
		return withdrawn(m)
	})
	for _, m := range e.flying {
		switch {
		case !withdrawn(m):
		case f.chance(2):
			m.drop()
		default:
			m.copy()
			m.done = true
		}
	}
	e.reap()
}

// Refuse implements transport.Endpoint.
func (e *endpoint) Refuse(t transport.Target) {
	f := e.s.n.f
	f.mu.Lock()
	wrong := noKey(t)
	if inServer() {
		wrong = "a method of a Server calls it"
	}
	usable := e.usable("Refuse", wrong)
	f.mu.Unlock()
	if usable { // what Reach has allowed before lands first
		e.serving.Lock()
		defer e.serving.Unlock()
	}
}

// inServer reports whether the caller was called by a method of a Server.
func inServer() bool {
	var pcs [256]uintptr
	for frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])]); ; {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "transporttest.(*endpoint).serve") {
			return true
		}
		if !more {
			return false
		}
	}
}

// Queued implements transport.Endpoint.
func (e *endpoint) Queued() uint64 { return e.queued.Load() }

// Sent implements transport.Endpoint.
func (e *endpoint) Sent() uint64 { return e.sent.Load() }

// Word implements transport.Endpoint.
func (e *endpoint) Word(place int) *atomic.Uint64 { return &e.places[place].word }

// Landed implements transport.Endpoint.
func (e *endpoint) Landed(place int) int { return int(e.places[place].landed.Load()) }

// Tell implements transport.Endpoint.
func (e *endpoint) Tell(m transport.Message) {
	n := e.s.n
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if !n.usable("Tell") || n.stopped || !e.made || e.down.Load() != nil {
		return
	}
	unread := 0
	for _, m := range e.s.other.in {
		if m.kind == tell {
			unread++
		}
	}
	if m.MayBeLost && unread >= mostTold {
		n.config.Log.Warn("transport: a message was dropped: the peer reads none", "peer", e.s.peer, "kind", m.Kind)
		return
	}
	m.Text, m.MayBeLost = m.Text[:min(len(m.Text), transport.MaxText)], false
	e.s.send(&message{kind: tell, told: m})
}

// Poll implements transport.Endpoint.
func (e *endpoint) Poll() { e.s.n.progress("Poll") }

// Err implements transport.Endpoint.
func (e *endpoint) Err() *transport.Down { return e.down.Load() }

// Close implements transport.Endpoint.
func (e *endpoint) Close() {
	f := e.s.n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.s.n.usable("Close of an endpoint") && e.down.Load() == nil {
		e.close()
	}
}

func (e *endpoint) close() {
	e.closed = true
	e.revoking.Store(0)
	var kept []*message
	for _, m := range e.out {
		switch m.kind {
		case put, write, call:
			m.drop()
		case ack: // the peer waits for it
			kept = append(kept, m)
		}
	}
	e.out = kept
	for _, m := range e.flying {
		m.copy()
	}
	for _, m := range e.puts {
		m.done = true
	}
	for _, x := range e.places {
		x.posted = nil
		e.ungrant(x)
	}
	e.reap()
	e.s.n.ring()
}

// fail ends the endpoint.
func (e *endpoint) fail(d *transport.Down) {
	e.out, e.flying, e.puts = nil, nil, nil
	for _, x := range e.places {
		x.posted = nil
		e.ungrant(x)
	}
	e.revoking.Store(0)
	e.down.CompareAndSwap(nil, d)
}

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
	e.serve(func() { p = e.server.Reach(t, n) })
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
