package net

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	stdnet "net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

const (
	dialLimit = 5 * time.Second        // for one address
	stagger   = 200 * time.Millisecond // before it tries the next address as well
)

// arrival holds the connections that a peer has dialled, until Connect takes them.
type arrival struct {
	taking  chan struct{} // full while a Connect takes them
	attempt [16]byte
	key     [32]byte
	fds     []int         // by index; -1: missing; nil: none has arrived
	news    chan struct{} // closed and replaced at each change
	err     error         // of a peer that has proved its identity
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

// arrival returns the peer's arrival, and makes it if there is none. The caller holds the lock.
func (n *Node) arrival(peer int) *arrival {
	a := n.peers[peer]
	if a == nil {
		a = &arrival{taking: make(chan struct{}, 1), news: make(chan struct{})}
		n.peers[peer] = a
	}
	return a
}

// Connect connects to a peer with the row at. Both sides call it; the lower rank dials. It blocks until there is a
// wire, whose connections have then carried a full-size frame both ways, or until ctx ends. If there is a wire already,
// it returns that. Several calls may run at once. The error says how each address failed. It wraps fault.ErrPeerLost,
// fault.ErrTimeout if nothing answered, or fault.ErrLimit if this process may have no more descriptors.
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
		return nil, fmt.Errorf("network: no connection to rank %d: another call still connects: %w: %w", peer,
			context.Cause(ctx), fault.ErrTimeout)
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
		return nil, fmt.Errorf("network: no connection to rank %d: %w", peer, err)
	}
	return w, nil
}

// connected returns the wire to a peer, or nil. A wire that ended before it had a link does not count: the other end
// failed to make it, and may try again. The caller holds the lock.
func (n *Node) connected(peer int) *Wire {
	if w := n.wires[peer]; w == nil || w.Err() == nil || w.linked.Load() {
		return w
	}
	delete(n.wires, peer)
	return nil
}

// await waits for the connections that the peer dials, and makes a wire of them.
func (n *Node) await(ctx context.Context, peer int, at Row, a *arrival) (*Wire, error) {
	for {
		n.mu.Lock()
		news := a.news
		if err := a.err; err != nil {
			a.err = nil
			n.mu.Unlock()
			return nil, err
		}
		if a.complete() {
			fds := a.fds
			a.fds = nil
			n.mu.Unlock()
			if a.key != at.Key {
				for _, fd := range fds {
					closeSocket(fd)
				}
				return nil, fmt.Errorf("another process says that it is this rank: %w", fault.ErrMismatch)
			}
			return n.wire(peer, fds)
		}
		n.mu.Unlock()
		select {
		case <-news:
		case <-n.ctx.Done():
			return nil, fault.ErrClosed
		case <-ctx.Done():
			if full := n.full.Load(); full != nil {
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), *full)
			}
			var on []string
			for _, x := range n.row.Addrs {
				on = append(on, netip.AddrPortFrom(x, n.row.Port).String())
			}
			return nil, fmt.Errorf("it has not come to any of %s: is there a firewall, or no route? %w: %w",
				strings.Join(on, ", "), context.Cause(ctx), fault.ErrTimeout)
		}
	}
}

// dial makes all connections of a wire, to the first address that answers.
func (n *Node) dial(ctx context.Context, peer int, at Row, _ *arrival) (*Wire, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	h := hello{from: uint32(n.config.Rank), to: uint32(peer), count: 1 + Lanes, key: n.row.Key}
	if _, err := rand.Read(h.attempt[:]); err != nil {
		return nil, err
	}
	first, addr, err := n.race(ctx, h, at)
	if err != nil {
		return nil, err
	}
	fds := make([]int, 0, h.count)
	for c := first; ; {
		fd, err := n.tried(ctx, c, h.index == 0, true)
		if err == nil {
			fds = append(fds, fd)
			if h.index++; h.index == h.count {
				return n.wire(peer, fds)
			}
			c, err = n.attempt(ctx, h, addr, at.Key)
		}
		if err != nil {
			for _, fd := range fds {
				closeSocket(fd)
			}
			return nil, fmt.Errorf("%v: %w", addr, reasoned(err))
		}
	}
}

// race dials all addresses, starting each a little after the one before, and takes the first whose peer proves itself.
func (n *Node) race(ctx context.Context, h hello, at Row) (stdnet.Conn, netip.AddrPort, error) {
	type result struct {
		c    stdnet.Conn
		addr netip.AddrPort
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addrs := inOrder(at.Addrs, n.mine)
	results := make(chan result, len(addrs))
	next, running := 0, 0
	start := func() {
		addr := netip.AddrPortFrom(addrs[next], at.Port)
		next++
		running++
		go func() {
			c, err := n.attempt(ctx, h, addr, at.Key)
			results <- result{c, addr, err}
		}()
	}
	var won result
	var errs []error
	for next < len(addrs) || running > 0 {
		var later <-chan time.Time
		if won.c == nil && next < len(addrs) {
			if running == 0 {
				start()
			}
			if next < len(addrs) {
				later = time.After(stagger)
			}
		}
		select {
		case <-later:
			start()
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				errs = append(errs, fmt.Errorf("%v: %w", r.addr, reasoned(r.err)))
			case won.c != nil:
				r.c.Close()
			default:
				won = r
				next = len(addrs)
				cancel()
			}
		}
	}
	if won.c != nil {
		return won.c, won.addr, nil
	}
	return nil, won.addr, errors.Join(errs...)
}

// attempt makes a connection whose ends have proved themselves. It tries a few times, since a peer that many strangers
// dial may have no room for it at first.
func (n *Node) attempt(ctx context.Context, h hello, addr netip.AddrPort, key [32]byte) (stdnet.Conn, error) {
	for again := 0; ; again++ {
		c, err := n.attemptOnce(ctx, h, addr, key)
		closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if !closed || again == 3 {
			return c, err
		}
		select {
		case <-time.After(20 * time.Millisecond << again):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (n *Node) attemptOnce(ctx context.Context, h hello, addr netip.AddrPort, key [32]byte) (stdnet.Conn, error) {
	d := stdnet.Dialer{Timeout: dialLimit, KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(dialLimit))
	stop := untilDone(ctx, c)
	err = n.meet(c, h, key)
	if stop(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// tried probes a connection and takes its socket.
func (n *Node) tried(ctx context.Context, c stdnet.Conn, control, dialled bool) (int, error) {
	defer c.Close()
	fd, err := adopt(c.(*stdnet.TCPConn)) // before the probe: after it, the other side has a wire
	if err != nil {
		return 0, err
	}
	err = probe(ctx, c, dialled)
	if err == nil {
		err = watch(fd, control) // after the probe, which has its own time limit and error
	}
	if err != nil {
		closeSocket(fd)
		return 0, err
	}
	return fd, nil
}

// reasoned adds the reason for failure to a system error.
func reasoned(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return limit(err)
	case errors.Is(err, fault.ErrTimeout), errors.Is(err, fault.ErrMismatch):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer: is there a firewall? %w: %w", err, fault.ErrTimeout)
	case errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("%w: %w", err, fault.ErrPeerLost)
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
			if n.strangers.add(c) {
				n.handshake.Go(func() { n.greet(c) })
			}
		}
	}
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
	fd, err := n.tried(n.ctx, c, h.index == 0, false)
	if errors.Is(err, errNoProbe) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.arrival(int(h.from))
	defer a.tell()
	switch {
	case err != nil:
		a.err = fmt.Errorf("%v: %w", c.RemoteAddr(), reasoned(err))
		return
	case n.closing, n.connected(int(h.from)) != nil:
		closeSocket(fd)
		return
	case a.fds == nil || a.attempt != h.attempt:
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

// queue has the connections that have not proved themselves yet, oldest first.
type queue struct {
	mu     sync.Mutex
	list   []stranger
	closed bool
}

type stranger struct {
	stdnet.Conn
	spoke bool // has sent a hello
}

// add reports whether c may do its handshake. If there are too many, it closes the oldest that has not spoken, or else
// the oldest. So strangers that only connect, however often, do not keep ranks out.
func (q *queue) add(c stdnet.Conn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		c.Close()
		return false
	}
	if len(q.list) == strangers {
		i := max(slices.IndexFunc(q.list, func(s stranger) bool { return !s.spoke }), 0)
		q.list[i].Close()
		q.list = slices.Delete(q.list, i, i+1)
	}
	q.list = append(q.list, stranger{Conn: c})
	return true
}

// speaks notes that c has sent a hello.
func (q *queue) speaks(c stdnet.Conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := q.find(c); i >= 0 {
		q.list[i].spoke = true
	}
}

// find returns c's index, or -1. The caller holds the lock.
func (q *queue) find(c stdnet.Conn) int {
	return slices.IndexFunc(q.list, func(s stranger) bool { return s.Conn == c })
}

// remove reports whether c was in the queue, so that add has not closed it.
func (q *queue) remove(c stdnet.Conn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.find(c)
	if i >= 0 {
		q.list = slices.Delete(q.list, i, i+1)
	}
	return i >= 0
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.list {
		c.Close()
	}
	q.list, q.closed = nil, true
}
