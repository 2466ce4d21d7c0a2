package net

import (
	"errors"
	"fmt"
	stdnet "net"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// decideLimit is how long the peer may take for each further connection of an attempt that this rank has decided for.
const decideLimit = 5 * time.Second

// accept accepts connections until the listener is closed.
func (n *Node) accept(l stdnet.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, stdnet.ErrClosed):
			return
		case err != nil:
			n.config.Log.Warn("network: cannot accept", "on", l.Addr(), "err", limit(err))
			select {
			case <-time.After(100 * time.Millisecond):
			case <-n.ctx.Done():
				return
			}
		case n.cut.off():
			n.cut.ignore(c)
		default:
			if n.strangers.add(c, n.knows(c)) {
				n.handshake.Go(func() { n.greet(c) })
			}
		}
	}
}

// knows reports whether c comes from an address of the job. Before Begin none is known.
func (n *Node) knows(c stdnet.Conn) bool {
	select {
	case <-n.begun:
	default:
		return false
	}
	a, ok := c.RemoteAddr().(*stdnet.TCPAddr)
	return ok && n.known[a.AddrPort().Addr().Unmap()]
}

// greet does the handshake with a dialler.
func (n *Node) greet(c stdnet.Conn) {
	_ = c.SetDeadline(time.Now().Add(strangerLimit))
	h, err := n.welcome(c)
	if !n.strangers.remove(c) || err != nil {
		c.Close()
		if err != nil {
			n.config.Log.Debug("network: a stranger", "at", c.RemoteAddr(), "err", err)
		}
		return
	}
	select {
	case <-n.begun:
	case <-n.ctx.Done():
		c.Close()
		return
	}
	if at, err := n.reach(int(h.from)); err != nil || at.Key != h.key {
		n.config.Log.Warn("network: another process says that it is a rank of this job", "rank", h.from, "at", c.RemoteAddr(), "err", err)
		c.Close()
		return
	}
	if err := n.take(c, h); err != nil && !errors.Is(err, errNoProbe) {
		n.config.Log.Debug("network: a connection failed", "peer", h.from, "at", c.RemoteAddr(), "err", err)
	}
}

// take does the rest of the handshake. With the last connection of an attempt there is a wire.
func (n *Node) take(c stdnet.Conn, h hello) error {
	defer c.Close()
	fd, err := n.adopted(c)
	if err != nil {
		return err
	}
	var pairs []device
	err = accepting(n.ctx, c, func() bool { return n.wanted(h) }, n.offering(n.ctx, int(h.from), h.index == 0, &pairs))
	if err == nil {
		err = n.arrive(h, fd, pairs) // which owns both now
	}
	if err != nil {
		closePairs(pairs)
		if !errors.Is(err, errNoProbe) {
			n.decided(int(h.from), h.attempt)
		}
		closeSocket(fd)
	}
	return err
}

// wanted reports whether a connection of a proven peer may go on.
func (n *Node) wanted(h hello) bool {
	peer := int(h.from)
	n.mu.Lock()
	w := n.connected(peer)
	closing := n.closing
	n.mu.Unlock()
	// A higher rank may not know yet of the wire that there is; or it has found it cut.
	crossed := w != nil && (w.attempt == h.attempt || w.attempt != h.instead && n.config.Rank < peer)
	return !closing && !crossed && n.decide(peer, h.attempt, decideLimit)
}

// arrive puts the socket of a connection among the others of its attempt, and makes the wire once it has all. The peer
// may use its end once it is told.
func (n *Node) arrive(h hello, fd int, pairs []device) error {
	if err := watch(fd, h.index == 0, n.config.Timeout); err != nil {
		return err
	}
	peer := int(h.from)
	n.mu.Lock()
	p := n.contact(peer)
	switch {
	case n.closing:
		n.mu.Unlock()
		return fault.ErrClosed
	case n.config.Rank < peer && p.deciding != h.attempt:
		n.mu.Unlock()
		return errCrossed
	}
	if p.fds == nil || p.arriving != h.attempt {
		p.drop()
		p.arriving = h.attempt
		p.fds = make([]int, h.count)
		for i := range p.fds {
			p.fds[i] = -1
		}
	}
	if len(p.fds) != int(h.count) || p.fds[h.index] >= 0 {
		n.mu.Unlock()
		return fmt.Errorf("connection %d came twice: %w", h.index, fault.ErrMismatch)
	}
	p.fds[h.index] = fd
	var all []int
	switch {
	case pairs != nil:
		all, p.fds = []int{fd}, nil
	case !slices.Contains(p.fds, -1):
		all, p.fds = p.fds, nil
	}
	n.mu.Unlock()
	_, err := sendTo(fd, []byte{1})
	if all != nil {
		if _, failed := n.wire(peer, all, pairs, h.attempt); failed != nil {
			n.config.Log.Warn("network: no wire", "peer", peer, "err", failed)
		}
		n.decided(peer, h.attempt)
	}
	if err != nil {
		n.config.Log.Debug("network: a connection ended", "peer", peer, "err", err)
	}
	return nil
}
