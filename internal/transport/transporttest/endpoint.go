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
	case e.inMade && call != "Post" && inMade():
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

// GrantDevice implements transport.Endpoint. This network has no RDMA devices.
func (e *endpoint) GrantDevice(int, uint64, unsafe.Pointer, int) bool { return false }

// PutDevice implements transport.Endpoint.
func (e *endpoint) PutDevice(int, uint64, unsafe.Pointer, int) bool { return false }

// WriteDevice implements transport.Endpoint.
func (e *endpoint) WriteDevice(transport.Target, unsafe.Pointer, int) bool { return false }

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
	case e.inMade && inMade():
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
func (e *endpoint) Write(t transport.Target, p unsafe.Pointer, n int, more bool) (devices bool) {
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
	return false
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

// Read implements transport.Endpoint: there is no RDMA.
func (e *endpoint) Read(transport.Target, unsafe.Pointer, int, *transport.Result) bool { return false }

// Withdraw implements transport.Endpoint. With delays, what is under way may be dropped, too, unless the peer's server has
// been asked about it.
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
		case !m.asked && f.chance(2):
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
func inServer() bool { return within("(*endpoint).serve") }

// inMade reports whether the caller was called by Comm.Made.
func inMade() bool { return within("(*node).add") }

// within reports whether the caller was called by a function of this package.
func within(function string) bool {
	var pcs [256]uintptr
	for frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])]); ; {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "transporttest."+function) {
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
