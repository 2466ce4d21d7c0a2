package net

import (
	"context"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

const (
	awaitTick  = 250 * time.Millisecond
	askAfter   = time.Second     // how long a rank waits for a peer to dial before it asks whether the peer still listens
	askAgain   = 2 * time.Second // and how long after each answer
	retryLimit = 2 * time.Second // how long a peer whose connection has failed may take to try another address
)

// arrival holds the connections that a peer has dialled, until Connect takes them.
type arrival struct {
	taking  chan struct{} // full while a Connect takes them
	attempt [16]byte
	key     [32]byte
	fds     []int         // by index; -1: missing; nil: none has arrived
	news    chan struct{} // closed and replaced at each change
	probing int           // connections that have proved themselves, and have not carried a large message yet
	err     error         // why the last of these failed
	failed  time.Time     // when
}

func (a *arrival) complete() bool {
	for _, fd := range a.fds {
		if fd < 0 {
			return false
		}
	}
	return a.fds != nil
}

func (a *arrival) drop() {
	for _, fd := range a.fds {
		if fd >= 0 {
			closeSocket(fd)
		}
	}
	a.fds = nil
}

func (a *arrival) tell() {
	close(a.news)
	a.news = make(chan struct{})
}

// fail notes that a connection has failed.
func (a *arrival) fail(err error) { a.err, a.failed = err, time.Now() }

// givenUp returns, once, why the peer's connections have failed, if no more have come since.
func (a *arrival) givenUp() error {
	if a.err == nil || a.probing > 0 || time.Since(a.failed) < retryLimit {
		return nil
	}
	err := a.err
	a.err = nil
	return err
}

// arrival returns the peer's arrival, and makes it if there is none. The caller holds the lock.
func (n *Node) arrival(peer int) *arrival {
	a := n.peers[peer]
	if a == nil {
		a = &arrival{taking: make(chan struct{}, 1), news: make(chan struct{})}
		n.peers[peer] = a
	}
	return a
}

// await waits for the connections that the peer dials, and makes a wire of them. Meanwhile it asks the peer's host now
// and then whether the peer still listens, since a peer that has ended never dials.
func (n *Node) await(ctx context.Context, peer int, at Row, a *arrival) (*Wire, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(awaitTick)
	defer tick.Stop()
	answer := make(chan error, 1)
	ask := time.NewTimer(askAfter)
	defer ask.Stop()
	for {
		n.mu.Lock()
		news := a.news
		if a.complete() {
			fds, key, attempt := a.fds, a.key, a.attempt
			a.fds = nil
			n.mu.Unlock()
			return n.arrived(peer, fds, attempt, key == at.Key)
		}
		err := a.givenUp()
		n.mu.Unlock()
		if err != nil {
			return nil, n.blame(ctx, at, err)
		}
		select {
		case <-news:
		case <-tick.C:
		case <-ask.C:
			go func() { answer <- n.listens(ctx, at) }()
		case err := <-answer:
			if err != nil && ctx.Err() == nil {
				return nil, err
			}
			ask.Reset(askAgain)
		case <-n.ctx.Done():
			return nil, fault.ErrClosed
		case <-ctx.Done():
			return nil, n.notCome(ctx, a)
		}
	}
}

// arrived makes a wire of the connections that a peer has dialled, if its key is the rank's.
func (n *Node) arrived(peer int, fds []int, attempt [16]byte, genuine bool) (*Wire, error) {
	if genuine {
		return n.wire(peer, fds, attempt)
	}
	for _, fd := range fds {
		closeSocket(fd)
	}
	return nil, fmt.Errorf("another process says that it is this rank: %w", fault.ErrMismatch)
}

// notCome says why the peer has not come before ctx ended.
func (n *Node) notCome(ctx context.Context, a *arrival) error {
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*fault.Error](cause); ok {
		return e // somebody knows why
	}
	if full := n.full.Load(); full != nil {
		return fmt.Errorf("%w: %w", cause, *full)
	}
	n.mu.Lock()
	probing, err := a.probing, a.err
	a.err = nil
	n.mu.Unlock()
	switch {
	case probing > 0:
		return fmt.Errorf("%w: %w: %w", errSmallOnly, cause, fault.ErrTimeout)
	case err != nil:
		return fmt.Errorf("%w: %w", err, cause)
	}
	return fmt.Errorf("it has not come to any of %s: is it slow, or is a firewall in its way? %w: %w",
		n.row.places(), cause, fault.ErrTimeout)
}

// places lists where a node listens.
func (r Row) places() string {
	var on []string
	for _, x := range r.Addrs {
		on = append(on, netip.AddrPortFrom(x, r.Port).String())
	}
	return strings.Join(on, ", ")
}

// accept accepts connections until the listener is closed.
func (n *Node) accept(l stdnet.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, stdnet.ErrClosed):
			return
		case err != nil:
			err = limit(err)
			n.config.Log.Warn("network: cannot accept", "on", l.Addr(), "err", err)
			if errors.Is(err, fault.ErrLimit) {
				n.full.Store(&err)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-n.ctx.Done():
				return
			}
		default:
			n.full.Store(nil)
			if n.strangers.add(c, n.known(c)) {
				n.handshake.Go(func() { n.greet(c) })
			}
		}
	}
}

// known reports whether c comes from an address of the job.
func (n *Node) known(c stdnet.Conn) bool {
	a, ok := c.RemoteAddr().(*stdnet.TCPAddr)
	return ok && n.config.Known != nil && n.config.Known(a.AddrPort().Addr().Unmap())
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
	n.mu.Lock()
	a := n.arrival(int(h.from))
	a.probing++
	n.mu.Unlock()
	fd, err := n.tried(n.ctx, c, h.index == 0, false)
	if err == nil {
		n.replace(h)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	defer a.tell()
	a.probing--
	switch {
	case errors.Is(err, errNoProbe):
	case err != nil:
		a.fail(fmt.Errorf("%v: %w", c.RemoteAddr(), n.reasoned(err)))
	default:
		n.place(a, h, fd)
	}
}

// replace ends the wire to a peer that makes another: the peer has found its end cut.
func (n *Node) replace(h hello) {
	n.mu.Lock()
	w := n.connected(int(h.from))
	n.mu.Unlock()
	if w == nil || w.attempt == h.attempt {
		return
	}
	for w.finish(Cut, errReplaced); w.Err() == nil; { // another goroutine is ending it, for a reason of its own
		time.Sleep(time.Millisecond)
	}
}

var errReplaced = errors.New("the peer found the connection cut, and makes it anew")

// place puts the socket of a connection among the others of its attempt. The caller holds the lock.
func (n *Node) place(a *arrival, h hello, fd int) {
	if n.closing || n.connected(int(h.from)) != nil {
		closeSocket(fd)
		return
	}
	if a.fds == nil || a.attempt != h.attempt {
		a.drop()
		a.attempt, a.key, a.err = h.attempt, h.key, nil
		a.fds = make([]int, h.count)
		for i := range a.fds {
			a.fds[i] = -1
		}
	}
	if a.fds[h.index] >= 0 || a.key != h.key {
		closeSocket(fd)
		return
	}
	a.fds[h.index] = fd
}
