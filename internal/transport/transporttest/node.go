package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// node implements transport.Node.
type node struct {
	f      *Fabric
	config transport.Config
	moving sync.Mutex    // held by the goroutine that makes progress
	served chan struct{} // closed when the node's goroutine has ended

	bell    chan struct{} // closed, and made anew, when there may be something to move or to see
	sides   map[int]*side
	joined  map[uint64]transport.Comm
	left    map[uint64]bool // all of them, so that peers that come later are refused
	begun   bool
	stopped bool
	closing bool
	over    bool // killed or closed
}

// ring wakes all that wait for something to move.
func (n *node) ring() {
	close(n.bell)
	n.bell = make(chan struct{})
}

// side returns the side of the wire to a peer, and makes both if there is none. The peer must have a node.
func (n *node) side(peer int) *side {
	if n.sides[peer] == nil {
		p := n.f.nodes[peer]
		s := &side{n: n, peer: peer, eps: map[uint64]*endpoint{}}
		s.other = &side{n: p, peer: n.config.Rank, eps: map[uint64]*endpoint{}, other: s}
		n.sides[peer], p.sides[n.config.Rank] = s, s.other
	}
	return n.sides[peer]
}

// usable reports whether calls have an effect. Calls after Close break the rules; those after Kill do not.
func (n *node) usable(call string) bool {
	if n.closing {
		n.f.violated("rank %d: %s after the node's Close", n.config.Rank, call)
	}
	return !n.closing && !n.over
}

// rowOf is the row of a rank.
func rowOf(rank int) string { return "rank " + strconv.Itoa(rank) }

// Row implements transport.Node.
func (n *node) Row() []byte { return []byte(rowOf(n.config.Rank)) }

// Transport implements transport.Node.
func (n *node) Transport() (name string, connections int) { return transportName, 1 }

const transportName = "test"

// Begin implements transport.Node.
func (n *node) Begin() {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if n.usable("Begin") {
		n.begun = true
		n.ring()
	}
}

// Join implements transport.Node.
func (n *node) Join(c transport.Comm) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if !n.usable("Join") {
		return fmt.Errorf("rank %d: %w", n.config.Rank, fault.ErrClosed)
	}
	if _, joined := n.joined[c.ID]; joined || n.left[c.ID] {
		return fmt.Errorf("communicator %#x has joined before: %w", c.ID, fault.ErrInUse)
	}
	n.joined[c.ID] = c
	n.ring()
	return nil
}

// Leave implements transport.Node.
func (n *node) Leave(comm uint64) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if !n.usable("Leave") {
		return
	}
	for _, s := range n.sides {
		if e := s.eps[comm]; e != nil {
			e.close()
			delete(s.eps, comm)
		}
	}
	delete(n.joined, comm)
	n.left[comm] = true
	n.ring()
}

// Endpoint implements transport.Node.
func (n *node) Endpoint(comm uint64, peer int, expected bool) transport.Endpoint {
	f := n.f
	f.mu.Lock()
	c, joined := n.joined[comm]
	p := f.nodes[peer]
	usable := n.usable("Endpoint")
	if usable && (!joined || peer == n.config.Rank || p == nil) {
		f.violated("rank %d: an endpoint of communicator %#x, which has joined: %v, and of rank %d, which has a node: %v",
			n.config.Rank, comm, joined, peer, p != nil)
		usable = false
	}
	if !usable {
		f.mu.Unlock()
		e := newEndpoint(&side{n: n, peer: peer}, transport.Comm{ID: comm})
		e.fail(&transport.Down{Kind: transport.Left, Peer: peer, Err: errors.New("this rank has closed its network")})
		return e
	}
	s := n.side(peer)
	if e := s.eps[comm]; e != nil {
		f.mu.Unlock()
		<-e.making
		return e
	}
	e := newEndpoint(s, c)
	if expected && n.config.Rank > peer {
		e.tellAt = time.Now().Add(patience)
	}
	n.add(e)
	f.mu.Unlock()
	return e
}

// add adds an endpoint. Until Comm.Made has returned, the peer does not learn of it.
func (n *node) add(e *endpoint) {
	e.s.eps[e.comm.ID] = e
	e.inMade = true
	slow := n.f.delay()
	n.f.mu.Unlock()
	if e.comm.Made != nil {
		e.server = e.comm.Made(e)
		time.Sleep(slow) // meanwhile those whom Made has told may use e
	}
	n.f.mu.Lock()
	e.inMade = false
	close(e.making)
	if e.s.down != nil {
		e.fail(e.s.down)
	}
	n.ring()
}

// Progress implements transport.Node.
func (n *node) Progress() { n.progress("Progress") }

func (n *node) progress(call string) (moved bool) {
	if !n.moving.TryLock() {
		return false
	}
	defer n.moving.Unlock()
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	return n.usable(call) && n.moveAll(false)
}

// Wait implements transport.Node.
func (n *node) Wait(d time.Duration) {
	begin := time.Now()
	bell := n.listen()
	if n.progress("Wait") {
		return
	}
	wait(bell, min(d, n.due(begin)))
	n.progress("Wait")
}

// listen returns the bell, which rings for all that happens from now on.
func (n *node) listen() <-chan struct{} {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	return n.bell
}

// wait waits for the bell, d at most.
func wait(bell <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-bell:
	case <-t.C:
	}
}

// due returns how long it takes at most until something can move that could not at time since.
func (n *node) due(since time.Time) time.Duration {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	d := tick
	at := func(t time.Time) {
		if t.After(since) {
			d = min(d, max(0, time.Until(t)))
		}
	}
	for _, s := range n.sides {
		at(s.cutAt)
		for _, m := range s.in {
			at(m.at)
		}
		for _, e := range s.eps {
			at(e.tellAt)
			if len(e.out) > 0 && e.made { // it may have to be tried again
				d = min(d, tick/100)
			}
		}
	}
	return d
}

// serve is the node's goroutine. It calls Tick, and makes progress unless the fabric is two-sided.
func (n *node) serve() {
	defer close(n.served)
	for next := time.Now().Add(tick); ; {
		begin := time.Now()
		bell := n.listen()
		n.moving.Lock()
		n.f.mu.Lock()
		if n.over {
			n.f.mu.Unlock()
			n.moving.Unlock()
			return
		}
		n.moveAll(n.f.o.TwoSided)
		n.f.mu.Unlock()
		n.moving.Unlock()
		left := max(0, time.Until(next))
		if !n.f.o.TwoSided {
			left = min(left, n.due(begin))
		}
		wait(bell, left)
		if now := time.Now(); !now.Before(next) {
			next = now.Add(tick)
			if n.wired() && n.config.Tick != nil {
				n.config.Tick()
			}
		}
	}
}

// wired reports whether the node has a wire, and runs.
func (n *node) wired() bool {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	for _, s := range n.sides {
		if s.up && s.down == nil && !n.over && !n.stopped {
			return true
		}
	}
	return false
}

// moveAll moves all that can move. If ends is set, it only notices which peers have ended. The caller holds moving and
// mu, which is released during callbacks.
func (n *node) moveAll(ends bool) (moved bool) {
	var all []*side // others may come during callbacks
	for _, s := range n.sides {
		all = append(all, s)
	}
	for _, s := range all {
		moved = n.move(s, ends) || moved
	}
	if moved {
		n.ring()
	}
	return moved
}

func (n *node) move(s *side, ends bool) (moved bool) {
	rests := func() bool { return n.stopped || n.over || s.down != nil }
	if rests() {
		return false
	}
	if !s.cutAt.IsZero() && !time.Now().Before(s.cutAt) {
		n.end(s, transport.Cut, errors.New("no answer"))
		return true
	}
	hold := func(m *message) bool {
		_, joined := n.joined[m.comm]
		return m.kind == open && (!n.begun || !joined && !n.left[m.comm])
	}
	if ends {
		for _, m := range s.in {
			ends = ends && m.kind != died // what came before has to land
		}
	}
	if ends {
		hold = func(m *message) bool { return m.kind < bye }
	} else {
		n.announce(s)
	}
	for left := batch; !rests() && left > 0; {
		if !ends {
			moved = s.flush() || moved
		}
		m := s.next(time.Now(), hold)
		if m == nil {
			break
		}
		moved = true
		if m.counts() {
			left -= min(m.n, frame)
		}
		s.taking = m
		n.take(s, m)
		s.taking = nil
	}
	return moved
}

// announce tells the peer of pairs that this side has made, if it is time.
func (n *node) announce(s *side) {
	for _, m := range s.in { // the wire is there before its pairs are
		if n.begun && m.kind == open && !m.at.After(time.Now()) {
			s.up, s.other.up = true, true
		}
	}
	for _, e := range s.eps {
		if !n.begun || e.inMade || e.told || e.down.Load() != nil || !e.made && time.Now().Before(e.tellAt) {
			continue
		}
		if !s.known {
			n.f.mu.Unlock()
			row := string(n.config.RowOf(s.peer))
			n.f.mu.Lock()
			if row != rowOf(s.peer) {
				e.fail(&transport.Down{Kind: transport.Unreached, Peer: s.peer, Err: fmt.Errorf("its row is %q: %w", row, fault.ErrArgument)})
				return
			}
			s.known = true
		}
		if s.other.n.over && !s.up {
			n.end(s, transport.Unreached, fmt.Errorf("nobody listens there any more: %w", fault.ErrPeerLost))
			return
		}
		if s.down != nil || s.eps[e.comm.ID] != e {
			return // meanwhile
		}
		e.told = true
		s.send(&message{kind: open, comm: e.comm.ID, n: e.comm.Places})
	}
}

// take handles a message that has arrived.
func (n *node) take(s *side, m *message) {
	f := n.f
	s.up, s.other.up = true, true
	e := s.eps[m.comm]
	switch m.kind {
	case open:
		c, joined := n.joined[m.comm]
		switch {
		case n.closing:
			return
		case !joined:
			s.send(&message{kind: refuse, comm: m.comm})
			return
		case c.Places != m.n:
			s.breaks(fmt.Sprintf("communicator %#x has %d places on rank %d, and %d on rank %d", m.comm, c.Places,
				n.config.Rank, m.n, s.peer))
			return
		}
		if e == nil {
			e = newEndpoint(s, c)
			n.add(e)
		}
		e.made = true
		n.announce(s)
	case refuse:
		if e != nil && !e.made {
			e.fail(&transport.Down{Kind: transport.Refused, Peer: s.peer, Err: fmt.Errorf("it has closed communicator %#x", m.comm)})
		}
	case put, write, call:
		if e != nil && !e.closed && !e.receive(m) {
			m.at = time.Now().Add(f.delay())
			s.in = append([]*message{m}, s.in...)
			return
		}
		s.count.ReceivedPuts++
		s.count.ReceivedBytes += uint64(m.n)
	case grant:
		if e != nil {
			x := e.places[m.place]
			x.room.Store(int64(m.n))
			x.granted.Store(m.seq)
		}
	case revoke:
		if e == nil {
			s.send(&message{kind: ack, comm: m.comm, place: m.place, seq: m.seq})
		} else {
			e.stop(m.place, m.seq)
		}
	case ack:
		if e != nil && !e.closed {
			e.revoked(m.place, m.seq)
		}
	case tell:
		if n.config.Heard != nil {
			f.mu.Unlock()
			n.config.Heard(s.peer, m.told)
			f.mu.Lock()
		}
	case bye:
		s.other.byes.taken = true
		n.end(s, transport.Left, errors.New("it has closed its network"))
	case died:
		n.end(s, transport.Died, errors.New("its process has ended"))
	case broken:
		n.end(s, transport.Broken, errors.New(m.text))
	}
	m.finish()
}

// end ends this side of a wire.
func (n *node) end(s *side, kind transport.DownKind, err error) {
	if kind == transport.Cut && !s.up {
		kind, err = transport.Unreached, fmt.Errorf("%w: %w", err, fault.ErrPeerLost)
	}
	s.down = &transport.Down{Kind: kind, Peer: s.peer, Err: err}
	s.in = nil
	if kind != transport.Broken { // the other side has to hear of that
		s.other.in = nil
		s.other.n.ring()
	}
	for _, e := range s.eps {
		e.fail(s.down)
	}
	n.config.Log.Info("transport: a wire has ended", "peer", s.peer, "err", err)
	if kind != transport.Left && kind != transport.Unreached && n.config.Down != nil {
		n.f.mu.Unlock()
		n.config.Down(s.peer, s.down)
		n.f.mu.Lock()
	}
}

// Cut implements transport.Node.
func (n *node) Cut() error {
	n.f.mu.Lock()
	var peers []int
	for r := range n.sides {
		peers = append(peers, r)
	}
	n.f.mu.Unlock()
	for _, r := range peers {
		n.f.Cut(n.config.Rank, r)
	}
	return nil
}

// Traffic implements transport.Node. Messages have no heads, and none is sent again.
func (n *node) Traffic() (all []transport.Traffic) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	for peer, s := range n.sides {
		if s.up {
			t := s.count
			t.Peer = peer
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b transport.Traffic) int { return a.Peer - b.Peer })
	return all
}

// finish ends the node.
func (n *node) finish(why string) {
	n.over = true
	for _, s := range n.sides {
		s.in = nil
		if s.down == nil {
			s.down = &transport.Down{Kind: transport.Left, Peer: s.peer, Err: errors.New(why)}
		}
		for _, e := range s.eps {
			e.fail(s.down)
		}
	}
	n.ring()
}

// Close implements transport.Node.
func (n *node) Close(limit time.Duration) error {
	f := n.f
	n.moving.Lock() // whoever still makes progress ends it first
	f.mu.Lock()
	if n.closing || n.over {
		f.mu.Unlock()
		n.moving.Unlock()
		return nil
	}
	n.closing = true
	for end := clock.In(limit); ; {
		begin, bell := time.Now(), n.bell
		n.moveAll(false)
		if n.said() || end.Passed() {
			break
		}
		f.mu.Unlock()
		wait(bell, min(time.Millisecond, n.due(begin)))
		f.mu.Lock()
	}
	var left []error
	for _, s := range n.sides {
		if s.down != nil || s.byes.taken {
			continue
		}
		s.other.in = nil
		if !s.up {
			continue
		}
		is := fault.ErrTimeout
		what := fmt.Sprintf("has not taken %d puts", s.unsent())
		if s.cut {
			is, what = fault.ErrPeerLost, what+", and does not answer,"
		}
		left = append(left, reason.About(s.peer, fmt.Errorf("rank %d %s within %v: %w", s.peer, what, limit, is)))
		s.send(&message{kind: bye})
	}
	n.finish("this rank has closed its network")
	f.mu.Unlock()
	n.moving.Unlock()
	<-n.served
	return errors.Join(left...)
}

// said sends byes behind all that is to be sent, and reports whether all peers have taken theirs.
func (n *node) said() bool {
	all := true
	for _, s := range n.sides {
		if s.down != nil || s.byes.taken || !s.up || n.over {
			continue
		}
		all = false
		if !s.byes.sent && s.sent() {
			s.byes.sent = true
			s.send(&message{kind: bye})
		}
	}
	return all
}

// sent reports whether all endpoints' messages are under way.
func (s *side) sent() bool {
	for _, e := range s.eps {
		if e.made && len(e.out) > 0 {
			return false
		}
	}
	return true
}

// unsent is how many puts the peer has not taken.
func (s *side) unsent() (puts int) {
	for _, e := range s.eps {
		puts += len(e.puts)
	}
	return puts
}
