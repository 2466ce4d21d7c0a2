package net

import (
	"context"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/frame"
)

// Each side of a link tells the other that it has made it, by an Open frame. The link is up once the peer's has come.
// A peer's Open frame makes this side, too, if the communicator has joined. If it has not, the peer waits; if it has
// left, the peer is refused.

// comm is a communicator that has joined.
type comm struct {
	transport.Comm
	mu    sync.Mutex
	links map[int]*Link // by peer
	left  bool
}

const (
	mostLeft  = 1 << 14 // communicators of which the node remembers that they have left
	mostAsked = 1 << 12 // links of a wire that may wait for their communicators to join
)

// Join implements transport.Node.
func (n *Node) Join(c transport.Comm) error {
	n.mu.Lock()
	if n.comms[c.ID] != nil || n.left[c.ID] {
		n.mu.Unlock()
		return fmt.Errorf("network: communicator %#x has been here before: %w", c.ID, fault.ErrInUse)
	}
	j := &comm{Comm: c, links: map[int]*Link{}}
	n.comms[c.ID] = j
	waiting := map[*Wire]int{}
	for _, w := range n.wires {
		if places, ok := w.asked[c.ID]; ok {
			waiting[w] = places
		}
	}
	n.mu.Unlock()
	for w, places := range waiting {
		if err := w.admit(j, places, true); err != nil {
			w.finish(transport.Broken, err)
		}
	}
	return nil
}

// Leave implements transport.Node.
func (n *Node) Leave(id uint64) {
	n.mu.Lock()
	c := n.comms[id]
	delete(n.comms, id)
	if !n.left[id] {
		n.left[id] = true
		n.order = append(n.order, id)
	}
	if len(n.order) > mostLeft {
		delete(n.left, n.order[0])
		n.order = n.order[1:]
	}
	var waiting []*Wire
	for _, w := range n.wires {
		if _, ok := w.asked[id]; ok && c == nil {
			waiting = append(waiting, w)
		}
	}
	n.mu.Unlock()
	for _, w := range waiting {
		w.refuse(id)
	}
	if c == nil {
		return
	}
	c.mu.Lock()
	c.left = true
	c.mu.Unlock() // nobody makes links now
	for _, l := range c.links {
		l.Close()
	}
}

// Endpoint implements transport.Node.
func (n *Node) Endpoint(id uint64, peer int, expected bool) transport.Endpoint {
	n.mu.Lock()
	c := n.comms[id]
	closing := n.closing
	n.mu.Unlock()
	if c == nil {
		c = &comm{Comm: transport.Comm{ID: id}, links: map[int]*Link{}, left: true}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.links[peer]; l != nil {
		return l
	}
	ctx, cancel := context.WithCancelCause(n.ctx)
	l := c.link(n, peer, cancel)
	if c.left || closing {
		cancel(errLinkClosed)
		l.fail(&transport.Down{Kind: transport.Left, Peer: peer, Err: errLinkClosed})
		return l
	}
	n.making.Go(func() { l.make(ctx, expected) })
	return l
}

// opened handles the peer's Open frame.
func (w *Wire) opened(h frame.Header) error {
	n := w.node
	n.mu.Lock()
	c := n.comms[h.Comm]
	waits := c == nil && !n.left[h.Comm] && len(w.asked) < mostAsked
	if waits {
		w.asked[h.Comm] = int(h.Place)
	}
	n.mu.Unlock()
	switch {
	case waits:
		return nil
	case c == nil:
		w.refuse(h.Comm)
		return nil
	}
	return w.admit(c, int(h.Place), false)
}

// admit makes this side of a link that the peer has made; waited says that this was before the communicator joined. An
// error ends the wire.
func (w *Wire) admit(c *comm, places int, waited bool) error {
	if places != c.Places {
		return fmt.Errorf("%w: its links of communicator %#x have %d places, not %d", frame.ErrFrame, c.ID, places, c.Places)
	}
	c.mu.Lock()
	l := c.links[w.peer]
	first := l == nil && !c.left
	if first {
		l = c.link(w.node, w.peer, func(error) {})
	}
	made := l != nil && l.attach(w, waited) == nil
	if first && !made { // the wire has ended; who wants an endpoint later connects anew
		delete(c.links, w.peer)
	}
	c.mu.Unlock()
	if !made {
		w.refuse(c.ID)
		return nil
	}
	l.rise()
	return nil
}

// refuse answers the peer's Open frame, unless it meets the end of this side, which is on its way on all connections: the
// peer must go on counting these. The peer's side waits no more.
func (w *Wire) refuse(comm uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(comm)
	if l := (*w.links.Load())[comm]; l != nil && l.closed.Load() && l.over.Load()&1 == 0 {
		return
	}
	w.data[0].Put(frame.Header{Kind: frame.Refuse, Comm: comm}, nil, nil)
}

// refused handles the peer's refusal.
func (w *Wire) refused(comm uint64) {
	w.mu.Lock()
	l := (*w.links.Load())[comm]
	refused := l != nil && !l.closed.Load() // else the peer answers what Close has told it
	if refused {
		l.refused = true
		w.put(comm, nil)
	}
	w.mu.Unlock()
	if refused {
		l.fail(refusal(w.peer))
	}
}
