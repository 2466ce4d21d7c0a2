package net

import (
	"context"
	"errors"
	"fmt"
	stdnet "net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/transport"
	"github.com/ubcoll/ubcoll/internal/transport/net/tcp"
)

// cut is what a node knows once it is cut off.
type cut struct {
	at atomic.Int64 // when, in nanoseconds of Unix time; 0: it is not

	mu      sync.Mutex
	held    []int         // sockets that nobody uses, until the node's end: closing them would tell the peer
	callers []stdnet.Conn // which nobody answers, likewise
}

// Cut implements transport.Node. A peer learns of a socket that is closed or shut down, so sockets stay open. The wires get
// sockets of their own in place of those to the peer, which fill as those of a cable that is pulled do. A filter then drops
// all that comes, before the kernel acknowledges it. On data connections the kernel may send again what it has taken before,
// which tells the peer nothing new.
func (n *Node) Cut() error {
	if !n.cut.at.CompareAndSwap(0, time.Now().UnixNano()) {
		return nil
	}
	var errs []error
	for _, l := range n.listeners {
		errs = append(errs, deafListener(l.(*stdnet.TCPListener)))
	}
	if err := errors.Join(errs...); err != nil { // the machine lets nobody do this
		n.cut.at.Store(0)
		return fmt.Errorf("network: cut: %w", err)
	}
	return n.isolate(n.all()...)
}

func (c *cut) off() bool { return c.at.Load() != 0 }

// isolate cuts the sockets of wires off.
func (n *Node) isolate(wires ...*Wire) error {
	var errs []error
	var controls, all []int
	for _, w := range wires {
		if w.isolated.Swap(true) {
			continue
		}
		c := &w.control
		c.receiving.Lock()
		c.sending.Lock()
		if c.fd >= 0 {
			fd, err := n.replace(&c.end)
			controls, errs = append(controls, fd), append(errs, err)
		}
		c.sending.Unlock()
		c.receiving.Unlock()
		for i := range w.data {
			d := &w.data[i]
			if t, ok := d.Conn.(*tcp.Conn); ok {
				errs = append(errs, t.Replace(func(int) error {
					fd, err := n.replace(&d.end)
					all = append(all, fd)
					return err
				}))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("network: cut: %w", limit(err))
	}
	// What a control connection sends again would count as a sign of life.
	for end := time.Now().Add(drained); slices.ContainsFunc(controls, unacknowledged) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for _, fd := range append(all, controls...) {
		errs = append(errs, deaf(fd), mute(fd))
	}
	return errors.Join(errs...)
}

// drained is how long control connections have for acknowledgements of what they have sent before. Kernels delay these by 40 ms.
const drained = 200 * time.Millisecond

// replace puts another socket, to which nobody answers, in the place of e's, and returns that. Nobody uses e's meanwhile.
func (n *Node) replace(e *end) (old int, err error) {
	old, other, err := n.poll.replace(e)
	if err != nil {
		return -1, err
	}
	n.cut.mu.Lock()
	n.cut.held = append(n.cut.held, old, other)
	n.cut.mu.Unlock()
	return old, nil
}

// ignore keeps a connection that a peer has made after the cut.
func (c *cut) ignore(conn stdnet.Conn) {
	c.mu.Lock()
	c.callers = append(c.callers, conn)
	c.mu.Unlock()
}

// unanswered waits as a dialler does whom nobody answers.
func (n *Node) unanswered(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(n.config.Timeout):
		return syscall.ETIMEDOUT
	}
}

// severance ends the wires of a node that was cut off, when its peers find them cut.
func (w *Wire) severance(now time.Time) {
	if at := w.node.cut.at.Load(); at != 0 && now.Sub(time.Unix(0, at)) >= w.node.config.Timeout {
		w.finish(transport.Cut, fmt.Errorf("no answer for %v (%s): %w", w.node.config.Timeout, env.NetTimeout.Name, syscall.ETIMEDOUT))
	}
}

// end closes what is held.
func (c *cut) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fd := range c.held {
		closeSocket(fd)
	}
	for _, conn := range c.callers {
		conn.Close()
	}
	c.held, c.callers = nil, nil
}
