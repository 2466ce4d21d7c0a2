package net

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	stdnet "net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/env"
)

const (
	stagger      = 200 * time.Millisecond  // before it tries the next address as well
	refusedLimit = 500 * time.Millisecond  // how long nobody may listen before the peer counts as ended
	blameLimit   = 1500 * time.Millisecond // how long the kernel of a peer with which little passes may take: one packet again
	refusedProof = 3                       // how often a peer may end the connection at this rank's proof
)

// dial makes all connections of a wire. It tries all addresses, and all of them again, until one works, the error says
// that none will, or ctx ends. A peer whose process is stopped does not answer, but its kernel does: no error.
func (n *Node) dial(ctx context.Context, peer int, at Row) (*Wire, error) {
	refused, silent := clock.After(refusedLimit), clock.After(n.config.Timeout)
	defer refused.Stop()
	defer silent.Stop()
	var before []error
	for again := 0; ; again++ {
		w, errs := n.dialOnce(ctx, peer, at)
		switch {
		case w != nil:
			return w, nil
		case ctx.Err() != nil:
			err := errors.Join(before...) // says more than those that the end of ctx has caused
			if before == nil {
				err = errors.Join(errs...)
			}
			if before != nil || !errors.Is(err, fault.ErrTimeout) {
				err = fmt.Errorf("%w: %w", err, late(ctx))
			}
			return nil, err
		case final(errs, again, passed(refused), passed(silent)):
			return nil, errors.Join(errs...)
		}
		before = errs
		pause(ctx, again)
	}
}

func passed(t clock.Timer) bool {
	select {
	case <-t.C:
		return true
	default:
		return false
	}
}

// pause waits before the next round, longer each time, and not equally long on all ranks.
func pause(ctx context.Context, again int) {
	d := 20 * time.Millisecond << min(again, 5)
	select {
	case <-time.After(d/2 + mathrand.N(d)):
	case <-ctx.Done():
	}
}

// final reports whether to give up: for each address, the error is one that stays, or has lasted for long enough. A peer
// that ends connections before it has answered is full.
func final(errs []error, again int, refused, silent bool) bool {
	for _, err := range errs {
		switch {
		case errors.Is(err, fault.ErrLimit): // this process has no descriptor left
			return true
		case errors.Is(err, errProofRefused):
			if again < refusedProof {
				return false
			}
		case errors.Is(err, errStranger), errors.Is(err, fault.ErrMismatch), errors.Is(err, errRequired):
		case errors.Is(err, syscall.ECONNREFUSED):
			if !refused {
				return false
			}
		case hungUp(err), errors.Is(err, errCrossed), !silent:
			return false
		}
	}
	return true
}

// dialOnce tries all addresses, and returns why each has failed.
func (n *Node) dialOnce(ctx context.Context, peer int, at Row) (w *Wire, errs []error) {
	left, rails := inOrder(at.Addrs, n.mine), railsTo(n.on, at.Addrs)
	count := 1 + max(n.config.Connections, len(rails))
	for len(left) > 0 {
		h := hello{from: uint32(n.config.Rank), to: uint32(peer), count: uint32(count), key: n.row.Key}
		if _, err := rand.Read(h.attempt[:]); err != nil {
			return nil, []error{err}
		}
		n.mu.Lock()
		h.instead = n.contact(peer).last
		n.mu.Unlock()
		first, addr, failed := n.race(ctx, h, at, left)
		errs = append(errs, failed...)
		if first == nil {
			return nil, errs
		}
		if !n.decide(peer, h.attempt, time.Hour) {
			first.Close()
			return nil, append(errs, errCrossed)
		}
		w, over, err := n.dialAll(ctx, first, h, addr, at.Key, rails)
		n.decided(peer, h.attempt)
		if err == nil {
			return w, nil
		}
		only := at
		only.Addrs = []netip.Addr{addr.Addr()}
		if over != nil {
			only.Addrs[0] = over.to
		}
		err = n.blame(ctx, only, fmt.Errorf("%v: %w", netip.AddrPortFrom(only.Addrs[0], at.Port), n.reasoned(err)))
		if over != nil { // another address for the control connection would not help
			return nil, append(errs, over.blame(err))
		}
		errs = append(errs, err)
		left = slices.DeleteFunc(left, func(a netip.Addr) bool { return a == addr.Addr() })
	}
	return nil, errs
}

// dialAll makes the connections after the first, over the rails in turn, and a wire of all. Without rails they go to the
// first one's address. over is the rail of the connection that could not be made, if it had one.
func (n *Node) dialAll(ctx context.Context, c stdnet.Conn, h hello, addr netip.AddrPort, key [32]byte, rails []rail) (w *Wire, over *rail, err error) {
	fds := make([]int, 0, h.count)
	var pairs []device
	var from netip.Addr
	for {
		var fd int
		if fd, err = n.tried(ctx, c, h, &pairs); err != nil {
			break
		}
		fds = append(fds, fd)
		if h.index++; h.index == h.count || pairs != nil {
			w, err = n.wire(int(h.to), fds, pairs, h.attempt)
			return w, nil, err
		}
		if rails != nil {
			over = &rails[int(h.index-1)%len(rails)]
			from, addr = over.from.prefix.Addr(), netip.AddrPortFrom(over.to, addr.Port())
		}
		if c, err = n.attempt(ctx, h, from, addr, key); err != nil {
			break
		}
	}
	if len(fds) > 0 {
		n.excuse(fds[0])
	}
	for _, fd := range fds {
		closeSocket(fd)
	}
	return nil, over, err
}

// excuse says bye on the control connection of an attempt that this rank ends by closing its network. The peer perhaps has
// a wire by now, and would take its end for this process's.
func (n *Node) excuse(fd int) {
	if n.ctx.Err() != nil {
		_, _ = sendTo(fd, encodeControl(nil, controlBye, nil))
	}
}

// race dials addresses, starting each a little after the one before, and takes the first whose peer proves itself.
// Without one, it returns why each has failed.
func (n *Node) race(ctx context.Context, h hello, at Row, addrs []netip.Addr) (stdnet.Conn, netip.AddrPort, []error) {
	type result struct {
		c    stdnet.Conn
		addr netip.AddrPort
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(addrs))
	next, running := 0, 0
	start := func() {
		addr := netip.AddrPortFrom(addrs[next], at.Port)
		next++
		running++
		go func() {
			c, err := n.attempt(ctx, h, netip.Addr{}, addr, at.Key)
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
				errs = append(errs, fmt.Errorf("%v: %w", r.addr, n.reasoned(r.err)))
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
	return nil, won.addr, errs
}

// dialer makes connections that end if the peer's host does not answer for the time limit, and only then: a peer that
// is stopped may take long. They come from that address, if it is one.
func (n *Node) dialer(from netip.Addr) *stdnet.Dialer {
	d := &stdnet.Dialer{Timeout: n.config.Timeout, KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		return limited(c, n.config.Timeout)
	}}
	if from.IsValid() {
		d.LocalAddr = stdnet.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	return d
}

// attempt makes a connection whose ends have proved themselves.
func (n *Node) attempt(ctx context.Context, h hello, from netip.Addr, addr netip.AddrPort, key [32]byte) (stdnet.Conn, error) {
	if n.cut.off() {
		return nil, n.unanswered(ctx)
	}
	c, err := n.dialer(from).DialContext(ctx, "tcp", addr.String())
	if err == nil {
		stop := untilDone(ctx, c)
		err = n.meet(c, h, key)
		if stop(); err != nil {
			c.Close()
		}
	}
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer yet: %w", late(ctx))
	}
	return nil, err
}

// blame returns err, or why nobody answers at a peer's addresses if err is that only small messages pass: a peer that
// ended, or whose host fell silent, during the probe looks the same.
func (n *Node) blame(ctx context.Context, at Row, err error) error {
	if !errors.Is(err, errSmallOnly) || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, blameLimit)
	defer cancel()
	if why := n.listens(ctx, at); why != nil {
		return why
	}
	return err
}

// listens returns why nobody listens at a peer's addresses, or nil if somebody does.
func (n *Node) listens(ctx context.Context, at Row) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(at.Addrs))
	for _, a := range at.Addrs {
		addr := netip.AddrPortFrom(a, at.Port)
		go func() {
			c, err := n.dialer(netip.Addr{}).DialContext(ctx, "tcp", addr.String())
			if err == nil {
				c.Close()
			} else {
				err = fmt.Errorf("%v: %w", addr, n.reasoned(err))
			}
			errs <- err
		}()
	}
	var all []error
	for range at.Addrs {
		err := <-errs
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// tried probes a connection and takes its socket. With the control connection may come the pairs that both sides have
// agreed on.
func (n *Node) tried(ctx context.Context, c stdnet.Conn, h hello, pairs *[]device) (int, error) {
	control := h.index == 0
	defer c.Close()
	fd, err := n.adopted(c)
	if err != nil {
		return 0, err
	}
	sealed, err := dialled(ctx, c, n.offering(ctx, int(h.to), control, pairs))
	if err == nil {
		err = watch(fd, control, n.config.Timeout)
	}
	if err != nil {
		if control && sealed {
			n.excuse(fd)
		}
		closePairs(*pairs)
		closeSocket(fd)
		return 0, err
	}
	return fd, nil
}

// adopted takes a connection's socket, before the probe: after it, the other side has a wire. For the probe it is
// watched, whatever the connection is for.
func (n *Node) adopted(c stdnet.Conn) (int, error) {
	fd, err := adopt(c.(*stdnet.TCPConn))
	if err != nil {
		return 0, err
	}
	if err := watch(fd, true, n.config.Timeout); err != nil {
		closeSocket(fd)
		return 0, err
	}
	return fd, nil
}

// reasoned adds the reason for failure to a system error.
func (n *Node) reasoned(err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return limit(err)
	case errors.Is(err, errRequired), errors.Is(err, fault.ErrTimeout), errors.Is(err, fault.ErrMismatch),
		errors.Is(err, context.Canceled), errors.Is(err, errCrossed):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		err = fmt.Errorf("nobody listens there any more, so its process has ended: %w", err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), noRoute(err):
		err = fmt.Errorf("no answer for %v (%s): %w", n.config.Timeout, env.NetTimeout.Name, err)
	}
	return fmt.Errorf("%w: %w", err, fault.ErrPeerLost)
}

// noRoute reports whether err says that the peer's host cannot be reached, or has not answered for too long.
func noRoute(err error) bool {
	for _, e := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
		syscall.ENETDOWN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// hungUp reports whether err is the end of a connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}
