package net

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	stdnet "net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/transport"
)

const (
	tick  = 20 * time.Millisecond
	quiet = 5 * time.Millisecond // how often the node's goroutine looks while others make progress
)

// Node is a process's end of the network. It implements transport.Node.
type Node struct {
	config  transport.Config
	private *ecdh.PrivateKey
	row     Row
	mine    []local // addresses of this host
	on      []local // of these, what UBCOLL_NET names; nil without it

	poll    *poll
	waiting sync.Mutex // held by the goroutine that uses waiter
	waiter  *waiter
	server  *waiter     // of the node's goroutine
	busy    atomic.Bool // another goroutine has made progress since the node's goroutine looked

	listeners []stdnet.Listener
	ctx       context.Context // for handshakes
	cancel    context.CancelFunc
	begun     chan struct{} // closed by begin
	begin     func()
	handshake sync.WaitGroup // counts the goroutines that accept and those that do handshakes
	making    sync.WaitGroup // counts the goroutines that make links
	strangers *unproved
	known     map[netip.Addr]bool // addresses of the job's ranks; written before begun

	rdma rdma
	ofi  rails
	said atomic.Bool // frames are queued that nobody has sent

	mu       sync.Mutex
	wires    map[int]*Wire
	contacts map[int]*contact
	comms    map[uint64]*comm
	left     map[uint64]bool // communicators that have left, at most mostLeft
	order    []uint64        // in which they have
	running  chan struct{}   // closed when the node's goroutine has ended; nil before it starts
	closing  bool
	closed   atomic.Bool

	cut cut
}

// end is a socket that a node watches, or a channel of events.
type end struct {
	id    int32
	fd    int
	ready func() bool // looks, and reports whether anything was there

	// Of a channel, which has one event and no other until it is armed: told takes it.
	told, arm func()

	// Of a queue, at which every progress looks: reports whether its descriptor, if fd is not -1, becomes readable when
	// something comes. Nobody waits for it otherwise.
	may  func() bool
	none bool // nothing is watched
}

// Listen is New.
func Listen(c transport.Config) (transport.Node, error) { return New(c) }

// New makes a node that listens on the interfaces of UBCOLL_NET and a port of UBCOLL_PORTS. It raises the process's
// soft limit on descriptors. Errors name the variable, the interface and the port.
func New(c transport.Config) (*Node, error) {
	if len(c.Secret) < 16 {
		return nil, fmt.Errorf("network: a secret of %d bytes: %w", len(c.Secret), fault.ErrArgument)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	c.Connections = max(c.Connections, 1)
	raiseLimit()
	words, err := env.Net.Get()
	if err != nil {
		return nil, err
	}
	ports, err := env.Ports.Get()
	if err != nil {
		return nil, err
	}
	n := &Node{config: c, wires: map[int]*Wire{}, contacts: map[int]*contact{}, comms: map[uint64]*comm{}, left: map[uint64]bool{},
		strangers: newUnproved(), begun: make(chan struct{})}
	n.begin = sync.OnceFunc(n.learn)
	if n.mine, err = locals(); err != nil {
		return nil, err
	}
	on, rest, err := chosen(n.mine, words)
	if err != nil {
		return nil, err
	}
	if len(words) > 0 {
		n.on = on
	}
	if len(rest) > 0 {
		c.Log.Warn("network: this host has more addresses than a rank listens on: name those to use in "+env.Net.Name,
			"used", list(on), "unused", list(rest))
	}
	if n.private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	self, err := shm.Self()
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	n.row = Row{Key: [32]byte(n.private.PublicKey().Bytes()), PID: int32(self.PID), Start: self.Start}
	var leave func(l local, err error)
	if len(words) == 0 {
		leave = func(l local, err error) {
			c.Log.Warn("network: an address cannot be used yet", "interface", l.name, "err", err)
		}
	}
	if n.poll, err = newPoll(); err != nil {
		return nil, err
	}
	if n.waiter, err = n.poll.waiter(); err == nil {
		if n.server, err = n.poll.waiter(); err == nil {
			n.listeners, n.row.Port, err = listen(on, ports, c.Rank, leave)
		}
	}
	if err != nil {
		n.release()
		return nil, err
	}
	for _, l := range n.listeners {
		n.row.Addrs = append(n.row.Addrs, l.Addr().(*stdnet.TCPAddr).AddrPort().Addr().Unmap())
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	for _, l := range n.listeners {
		n.handshake.Go(func() { n.accept(l) })
	}
	return n, nil
}

// release frees what New took.
func (n *Node) release() {
	for _, w := range []*waiter{n.waiter, n.server} {
		if w != nil {
			w.close()
		}
	}
	n.poll.close()
	n.cut.end()
	if err := errors.Join(n.rdma.close(), n.ofi.close()); err != nil {
		n.config.Log.Warn("network: devices do not end", "err", err)
	}
}

// Row implements transport.Node.
func (n *Node) Row() []byte { return n.row.Append(nil) }

// Transport implements transport.Node.
func (n *Node) Transport() (string, int) {
	switch n.devices() {
	case "ofi":
		return "ofi", 1
	case "verbs":
		_, pairs := n.config.NICs.Wires()
		return "verbs", pairs
	}
	return "tcp", n.config.Connections
}

// Progress implements transport.Node. If nothing can move it costs one system call.
func (n *Node) Progress() {
	n.moves()
	n.progress()
}

// moves tells the node's goroutine that it is not needed now.
func (n *Node) moves() {
	if !n.busy.Load() {
		n.busy.Store(true)
	}
}

func (n *Node) progress() bool {
	n.speak()
	return !n.closed.Load() && n.poll.progress()
}

// speak sends the frames that are queued.
func (n *Node) speak() {
	if !n.said.Load() || !n.said.Swap(false) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.wires {
		for _, d := range w.every() {
			d.Flush()
		}
	}
}

// Wait implements transport.Node. The goroutine parks, so its processor is free for others.
func (n *Node) Wait(d time.Duration) {
	n.moves()
	if n.progress() {
		return
	}
	if n.closed.Load() || !n.waiting.TryLock() {
		time.Sleep(min(d, time.Millisecond/4))
		return
	}
	if !n.poll.arm() {
		n.waiter.wait(d)
	}
	n.waiting.Unlock()
	n.progress()
}

// serve is the node's goroutine: it makes progress while nobody else does, and calls Tick.
func (n *Node) serve() {
	defer close(n.running)
	for next := time.Now().Add(tick); !n.closed.Load(); {
		left := max(time.Until(next), 0)
		if n.busy.Load() {
			n.busy.Store(false)
			time.Sleep(min(left, quiet))
		} else if !n.poll.arm() {
			n.server.wait(left)
		}
		n.progress()
		if now := time.Now(); !now.Before(next) {
			next = now.Add(tick)
			n.look(now)
			if n.config.Tick != nil {
				n.config.Tick()
			}
		}
	}
}

// look notes peers whose hosts do not answer, and queue pairs that have failed. It ends wires whose peer has closed only a
// part of them and then fallen silent.
func (n *Node) look(now time.Time) {
	for _, w := range n.all() {
		w.silent(now)
		w.broken()
		w.overdue(now)
		w.overdueOneSided(now)
		w.severed(now)
		w.stuck(now)
		w.severance(now)
	}
}

// all returns all wires.
func (n *Node) all() []*Wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*Wire
	for _, w := range n.wires {
		all = append(all, w)
	}
	return all
}

// Close implements transport.Node.
func (n *Node) Close(limit time.Duration) error {
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		return nil
	}
	n.closing = true
	n.mu.Unlock()
	n.cancel()
	for _, l := range n.listeners {
		l.Close()
	}
	n.strangers.close()
	n.handshake.Wait()
	n.making.Wait()
	n.mu.Lock()
	for _, p := range n.contacts {
		p.drop()
	}
	n.mu.Unlock()

	end := clock.In(limit)
	wires := n.all()
	for {
		open := false
		for _, w := range wires {
			open = !w.leave() || open
		}
		if !open || end.Passed() {
			break
		}
		n.Wait(time.Millisecond)
	}
	var left []error
	for _, w := range wires {
		if what := w.left(); what != "" {
			is := fault.ErrTimeout
			if w.silent(time.Now()) {
				what, is = what+", and its host does not answer,", fault.ErrPeerLost
			}
			left = append(left, reason.About(w.peer, fmt.Errorf("rank %d %s within %v: %w", w.peer, what, limit, is)))
		}
		w.finish(transport.Left, errClosed)
	}
	n.closed.Store(true)
	if n.running != nil {
		<-n.running
	}
	n.release()
	return errors.Join(left...)
}

var errClosed = errors.New("this rank has closed its network")

// limit adds the limit to an error for lack of descriptors.
func limit(err error) error {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return fmt.Errorf("this process may have %d descriptors (ulimit -n), and has them: %w: %w", descriptors(), err, fault.ErrLimit)
	}
	return err
}
