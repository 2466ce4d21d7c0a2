package net

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// Connect connects to a peer with the row at. Both sides call it; the lower rank dials. It blocks until there is a
// wire, whose connections have then carried a full-size frame both ways, or until ctx ends. If there is a wire already,
// it returns that, unless the wire was cut: then it makes another. Several calls may run at once.
//
// The error says who dials whom, and how each address failed. It wraps fault.ErrPeerLost if nobody listens at the
// peer's addresses any more, or its host has not answered for Config.Timeout, fault.ErrTimeout if the peer was still
// there when ctx ended, or fault.ErrLimit if this process may have no more descriptors. If ctx's cause is a
// *fault.Error, it is that.
func (n *Node) Connect(ctx context.Context, peer int, at Row) (*Wire, error) {
	if peer == n.config.Rank || peer < 0 {
		return nil, fmt.Errorf("network: rank %d connects to rank %d: %w", n.config.Rank, peer, fault.ErrArgument)
	}
	n.mu.Lock()
	a := n.arrival(peer)
	n.mu.Unlock()
	select {
	case a.taking <- struct{}{}:
		defer func() { <-a.taking }()
	case <-ctx.Done():
		return nil, fmt.Errorf("network: %s: another call still connects: %w: %w", n.direction(peer), context.Cause(ctx),
			fault.ErrTimeout)
	}
	n.mu.Lock()
	w, closing := n.connected(peer), n.closing
	n.mu.Unlock()
	switch {
	case closing:
		return nil, fmt.Errorf("network: %w", fault.ErrClosed)
	case w != nil:
		if d := w.Err(); d != nil {
			return nil, d
		}
		return w, nil
	}
	connect := n.await
	if n.config.Rank < peer {
		connect = n.dial
	}
	w, err := connect(ctx, peer, at, a)
	if err != nil {
		return nil, fmt.Errorf("network: %s: %w", n.direction(peer), err)
	}
	return w, nil
}

// direction says who dials whom.
func (n *Node) direction(peer int) string {
	if n.config.Rank < peer {
		return fmt.Sprintf("rank %d dials rank %d", n.config.Rank, peer)
	}
	return fmt.Sprintf("rank %d is to be dialled by rank %d", n.config.Rank, peer)
}

// connected returns the wire to a peer, or nil. A wire that ended before it had a link does not count: the other end
// failed to make it, and may try again. Nor does one that was cut: the network may have healed. The caller holds the
// lock.
func (n *Node) connected(peer int) *Wire {
	w := n.wires[peer]
	if w == nil {
		return nil
	}
	if d := w.Err(); d == nil || d.Kind != Cut && w.linked.Load() {
		return w
	}
	delete(n.wires, peer)
	return nil
}
