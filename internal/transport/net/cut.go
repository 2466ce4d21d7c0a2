package net

import (
	"context"
	"errors"
	"fmt"
	stdnet "net"
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

// Cut implements transport.Node. A peer learns of a socket that is closed or shut down, so sockets stay open. A filter drops all
// that comes, before the kernel acknowledges it; and the wires get sockets of their own in place of those to the peer,
// which fill as those of a cable that is pulled do. What the kernel has taken before it sends again and again, which tells the
// peer nothing new.
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
	for _, w := range n.all() {
		errs = append(errs, w.isolate())
	}
	return errors.Join(errs...)
}

func (c *cut) off() bool { return c.at.Load() != 0 }

// isolate cuts the sockets of a wire off.
func (w *Wire) isolate() error {
	if w.isolated.Swap(true) {
		return nil
	}
	c := &w.control
	c.receiving.Lock()
	c.sending.Lock()
	var err error
	if c.fd >= 0 {
		err = w.node.replace(&c.end)
	}
	c.sending.Unlock()
	c.receiving.Unlock()
	errs := []error{err}
	for i := range w.data {
		d := &w.data[i]
		if t, ok := d.Conn.(*tcp.Conn); ok {
			errs = append(errs, t.Replace(func(int) error { return w.node.replace(&d.end) }))
		}
	}
	return errors.Join(errs...)
}

// replace puts another socket, to which nobody answers, in the place of e's. Nobody uses e's meanwhile.
func (n *Node) replace(e *end) error {
	held, err := n.poll.replace(e)
	n.cut.mu.Lock()
	n.cut.held = append(n.cut.held, held...)
	n.cut.mu.Unlock()
	return err
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
