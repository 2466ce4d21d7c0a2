package net

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/transport"
)

// contact is what a node knows about its connections to a peer, beside their wire.
//
// Both ranks may dial, at the same time, too. The lower rank decides which connections become the wire: its own, if it
// dials; else it takes those of one attempt of the peer at a time. The other rank takes what the lower one has taken.
type contact struct {
	calling   chan struct{}     // full while a goroutine connects
	interrupt func(cause error) // ends that goroutine's dialling
	deciding  [16]byte          // the attempt that the lower rank has decided for
	until     time.Time         // how long that counts
	last      [16]byte          // the attempt that the last wire was made by
	arriving  [16]byte          // the attempt of fds
	fds       []int             // connections that the peer has dialled, by index; -1: missing; nil: none
	past      transport.Traffic // over the wires before the present one
}

var (
	errArrived = errors.New("the peer has connected")
	errCrossed = errors.New("it connects to this rank at the same time")
)

// patience is how long a rank that expects its peer to dial waits before it dials itself: less than the peer tries where
// nobody listens, since a firewall may refuse the peer's connections alone.
const patience = refusedLimit / 2

// contact returns what is known about a peer. The caller holds the lock.
func (n *Node) contact(peer int) *contact {
	p := n.contacts[peer]
	if p == nil {
		p = &contact{calling: make(chan struct{}, 1), interrupt: func(error) {}}
		n.contacts[peer] = p
	}
	return p
}

// drop closes the connections of an attempt that is not complete.
func (p *contact) drop() {
	for _, fd := range p.fds {
		if fd >= 0 {
			closeSocket(fd)
		}
	}
	p.fds = nil
}

// Begin implements transport.Node.
func (n *Node) Begin() { n.begin() }

// learn reads the addresses of all ranks.
func (n *Node) learn() {
	n.known = map[netip.Addr]bool{}
	for rank := range n.config.Size {
		row, err := n.reach(rank)
		if err != nil {
			continue // who connects to that rank gets the error
		}
		for _, a := range row.Addrs {
			n.known[a] = true
		}
	}
	close(n.begun)
}

// reach is how to reach a peer.
func (n *Node) reach(peer int) (Row, error) {
	if n.config.RowOf == nil {
		return Row{}, fmt.Errorf("network: no row of rank %d: %w", peer, fault.ErrArgument)
	}
	return ParseRow(n.config.RowOf(peer))
}

// connect returns a wire to a peer, whose connections have then carried a full-size frame both ways. If there is one
// already, it is that, unless it was cut: then another is made. If the peer is expected to dial, a higher rank gives it
// time to. Several calls may run at once.
//
// The error says how each address failed. It wraps fault.ErrPeerLost if nobody listens at the peer's addresses any
// more, or its host has not answered for Config.Timeout, fault.ErrTimeout if the peer was still there when ctx ended,
// or fault.ErrLimit if this process may have no more descriptors. If ctx's cause is a *fault.Error, it is that.
func (n *Node) connect(ctx context.Context, peer int, expected bool) (*Wire, error) {
	fail := func(err error) (*Wire, error) {
		return nil, fmt.Errorf("network: rank %d dials rank %d: %w", n.config.Rank, peer, err)
	}
	if peer == n.config.Rank || peer < 0 {
		return fail(fault.ErrArgument)
	}
	n.mu.Lock()
	p := n.contact(peer)
	n.mu.Unlock()
	select {
	case <-n.begun:
	case <-ctx.Done():
		return fail(late(ctx))
	}
	select {
	case p.calling <- struct{}{}:
	case <-ctx.Done():
		return fail(late(ctx))
	}
	defer func() { <-p.calling }()
	at, err := n.reach(peer)
	if err != nil {
		return fail(err)
	}
	dialling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.mu.Lock()
	w, closing := n.connected(peer), n.closing
	p.interrupt = cancel
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		p.interrupt = func(error) {}
		n.mu.Unlock()
	}()
	if w == nil && !closing {
		if expected && n.config.Rank > peer {
			select {
			case <-time.After(patience):
			case <-dialling.Done():
			}
		}
		if w, err = n.dial(dialling, peer, at); w == nil {
			n.mu.Lock()
			w, closing = n.connected(peer), n.closing
			n.mu.Unlock()
		}
	}
	known, told := errors.AsType[*fault.Error](context.Cause(ctx))
	switch {
	case closing:
		return fail(fault.ErrClosed)
	case w == nil && told: // somebody knows why
		return nil, known
	case w == nil:
		return fail(err)
	}
	if d := w.Err(); d != nil {
		return nil, d
	}
	return w, nil
}

// decide reports whether the connections of an attempt may become the wire to a peer. If so, that stays decided for d.
// Only the lower rank decides.
func (n *Node) decide(peer int, attempt [16]byte, d time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.contact(peer)
	if n.config.Rank > peer {
		return true
	}
	if p.deciding != attempt && time.Now().Before(p.until) {
		return false
	}
	p.deciding, p.until = attempt, time.Now().Add(d)
	return true
}

// decided says that an attempt has become the wire, or never will.
func (n *Node) decided(peer int, attempt [16]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.contact(peer); p.deciding == attempt {
		p.until = time.Time{}
	}
}

// connected returns the wire to a peer, or nil. A wire that ended before it had a link does not count: the other end
// failed to make it, and may try again. Nor does one that was cut: the network may have healed. The caller holds the
// lock.
func (n *Node) connected(peer int) *Wire {
	w := n.wires[peer]
	if w == nil {
		return nil
	}
	if d := w.Err(); d == nil || d.Kind == transport.Broken || d.Kind != transport.Cut && w.linked.Load() {
		return w
	}
	n.forget(peer)
	return nil
}

// forget forgets the wire to a peer, if there is one, except for what went over it. The caller holds the lock.
func (n *Node) forget(peer int) {
	if w := n.wires[peer]; w != nil {
		w.add(&n.contact(peer).past)
		delete(n.wires, peer)
	}
}

// Traffic implements transport.Node.
func (n *Node) Traffic() []transport.Traffic {
	var all []transport.Traffic
	var wires []*Wire
	n.mu.Lock()
	for peer, p := range n.contacts {
		if w := n.wires[peer]; w != nil || p.past != (transport.Traffic{}) {
			t := p.past
			t.Peer = peer
			all, wires = append(all, t), append(wires, w)
		}
	}
	n.mu.Unlock()
	for i, w := range wires { // one that is replaced meanwhile still counts once
		if w == nil {
			continue
		}
		for _, d := range w.every() {
			d.Look()
		}
		w.add(&all[i])
	}
	slices.SortFunc(all, func(a, b transport.Traffic) int { return a.Peer - b.Peer })
	return all
}

// add adds what went over the wire's data connections to t.
func (w *Wire) add(t *transport.Traffic) {
	for _, d := range w.every() {
		d.Add(t)
	}
}
