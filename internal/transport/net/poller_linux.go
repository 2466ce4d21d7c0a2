package net

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// poll is the set of a node's sockets, and how a goroutine waits for it.
//
// A call that blocks in the kernel keeps its processor until the runtime's monitor takes it back: with GOMAXPROCS=1, a
// goroutine in epoll_wait halves the speed of a rank that computes. So no goroutine blocks in the kernel here. A
// waiting goroutine parks in Go's own poller, on an outer epoll set that contains the node's set. The outer set is
// armed only while a goroutine waits, so data that come while a rank polls wake nobody.
type poll struct {
	fd int

	mu     sync.Mutex // guards ends and loose
	ends   map[int32]*end
	next   int32
	loose  []*end // whose sockets tell nothing before the next arm
	always []*end // at which each progress looks

	blind  atomic.Bool // a queue of always does not tell what comes
	moving sync.Mutex
	events [64]unix.EpollEvent
	round  []*end
}

func newPoll() (*poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("network: epoll: %w", limit(err))
	}
	fdtrace.Open(fd, "set of sockets")
	return &poll{fd: fd, ends: map[int32]*end{}}, nil
}

// add watches a socket until there is something to read, and then calls ready, from one goroutine at a time.
func (p *poll) add(e *end) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	e.id = p.next
	if e.may != nil {
		p.always = append(p.always, e)
		if e.fd < 0 {
			p.ends[e.id] = e
			return nil
		}
	}
	events := uint32(unix.EPOLLIN)
	if e.may != nil { // none before it is armed
		events = unix.EPOLLONESHOT
	}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, e.fd, &unix.EpollEvent{Events: events, Fd: e.id}); err != nil {
		p.always = slices.DeleteFunc(p.always, func(x *end) bool { return x == e })
		return fmt.Errorf("network: epoll: %w", limit(err))
	}
	p.ends[e.id] = e
	return nil
}

// want says whether e is also ready when its socket takes more data.
func (p *poll) want(e *end, room bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ends[e.id] == e {
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: e.id}
		if room {
			ev.Events |= unix.EPOLLOUT
		}
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, e.fd, &ev)
	}
}

// remove ends the watch. Call it before the socket is closed. It may be called again.
func (p *poll) remove(e *end) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ends[e.id] == e {
		delete(p.ends, e.id)
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, e.fd, nil)
		p.loose = slices.DeleteFunc(p.loose, func(x *end) bool { return x == e })
		p.always = slices.DeleteFunc(p.always, func(x *end) bool { return x == e })
	}
}

// once lets the descriptor of a queue tell what comes, once.
func (p *poll) once(e *end) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ends[e.id] == e {
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, e.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: e.id})
	}
}

func (p *poll) has(e *end) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends[e.id] == e
}

// arm lets all sockets tell of what comes from now on. It looks at those that did not, and reports whether anything had
// come there.
func (p *poll) arm() (moved bool) {
	p.mu.Lock()
	loose, always := p.loose, slices.Clone(p.always)
	p.loose = nil
	p.mu.Unlock()
	for _, e := range always {
		if e.fd < 0 || !e.may() {
			p.blind.Store(true)
		} else {
			p.once(e)
		}
		moved = e.ready() || moved
	}
	for _, e := range loose {
		e.arm()
		moved = e.ready() || moved
	}
	return moved
}

// progress calls ready of the ends that are, or may be, without waiting, and reports whether any was. It does nothing
// while another goroutine makes progress.
func (p *poll) progress() (moved bool) {
	if !p.moving.TryLock() {
		return false
	}
	defer p.moving.Unlock()
	k := wait(p.fd, p.events[:])
	p.mu.Lock()
	for _, ev := range p.events[:k] {
		e := p.ends[ev.Fd]
		if e != nil && e.told != nil {
			e.told()
			p.loose = append(p.loose, e)
		} else if e != nil && e.may == nil {
			p.round = append(p.round, e)
		}
	}
	p.round = append(append(p.round, p.loose...), p.always...)
	p.mu.Unlock()
	for _, e := range p.round {
		if p.has(e) { // one before it may have ended it
			moved = e.ready() || moved
		}
	}
	clear(p.round)
	p.round = p.round[:0]
	return moved || k > 0
}

// wait looks for events and does not block.
func wait(fd int, events []unix.EpollEvent) int {
	r, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(r)
}

func (p *poll) close() {
	p.moving.Lock()
	defer p.moving.Unlock()
	closeSocket(p.fd)
	p.fd = -1
}

// waiter lets one goroutine wait for the set.
type waiter struct {
	set   *poll
	outer int // the set that contains the node's set
	file  *os.File
	conn  syscall.RawConn
	look  func(uintptr) bool
	one   [1]unix.EpollEvent
}

func (p *poll) waiter() (*waiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("network: epoll: %w", limit(err))
	}
	err = errors.Join(unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, p.fd, &unix.EpollEvent{Fd: 1}), unix.SetNonblock(fd, true))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("network: epoll: %w", err)
	}
	fdtrace.Open(fd, "outer set of sockets")
	w := &waiter{set: p, outer: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if w.conn, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{})
	}
	if err != nil { // the runtime's poller does not take it
		w.close()
		return nil, fmt.Errorf("network: epoll: %w", err)
	}
	w.look = func(uintptr) bool { return wait(w.outer, w.one[:]) > 0 }
	return w, nil
}

// wait parks until the set has an event, for d at most.
func (w *waiter) wait(d time.Duration) {
	if w.set.blind.Swap(false) {
		d = min(d, blindly)
	}
	_ = unix.EpollCtl(w.outer, unix.EPOLL_CTL_MOD, w.set.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: 1})
	_ = w.file.SetReadDeadline(time.Now().Add(d))
	if w.conn.Read(w.look) != nil {
		_ = unix.EpollCtl(w.outer, unix.EPOLL_CTL_MOD, w.set.fd, &unix.EpollEvent{Fd: 1})
	}
}

// blindly is how long a goroutine waits at most while a queue does not tell what comes.
const blindly = time.Millisecond

// queue watches a queue of completions.
func (p *poll) queue(fd int, ready func() bool, may func() bool) (remove func(), err error) {
	e := &end{fd: fd, ready: ready, may: may}
	return func() { p.remove(e) }, p.add(e)
}

func (w *waiter) close() {
	fdtrace.Close(w.outer)
	_ = w.file.Close()
}

// adopt takes a connection's socket out of Go's poller.
func adopt(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(failed, err); err != nil {
		return 0, limit(err)
	}
	fdtrace.Open(fd, "socket")
	if err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		closeSocket(fd)
	}
	return fd, err
}

// unsent is how much a data connection's kernel takes that it has not sent: what is short waits for that much.
const unsent = 128 << 10

// watch sets after how long without acknowledgements a control connection ends. Data connections never end so, and take
// little that cannot be sent yet.
func watch(fd int, control bool, timeout time.Duration) (err error) {
	set := func(level, option, value int) {
		if err == nil {
			err = unix.SetsockoptInt(fd, level, option, value)
		}
	}
	if control {
		set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1)
		set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1)
		set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, max(1, int(timeout/time.Second))) // the next option decides, where it is known
		set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(timeout/time.Millisecond))
	} else { // a peer that is stopped and reads nothing is alive
		set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		set(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0)
		set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	}
	return err
}

// probe lets the kernel ask whether the peer's answers, once a second while nothing else goes over a connection, and do
// nothing if it does not.
func probe(fd int) (err error) {
	for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 127}} {
		err = errors.Join(err, unix.SetsockoptInt(fd, o[0], o[1], o[2]))
	}
	return err
}

// limited sets the same for a connection that is being made.
func limited(c syscall.RawConn, timeout time.Duration) (err error) {
	failed := c.Control(func(fd uintptr) { err = watch(int(fd), true, timeout) })
	return errors.Join(failed, err)
}

// silent reports whether the peer's kernel does not answer: data was retransmitted at least twice without
// acknowledgement, or a probe was, and nothing was acknowledged for half the time after which a control connection
// ends. Data from the peer may still come.
func silent(fd int, timeout time.Duration) bool {
	i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && (i.Retransmits > 1 || i.Probes > 0 && time.Duration(i.Last_ack_recv)*time.Millisecond > timeout/2)
}

func sendTo(fd int, b []byte) (int, error) {
	r, _, e := syscall.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), nil
}

func receiveFrom(fd int, b []byte) (int, error) {
	r, _, e := syscall.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), nil
}

func shutdown(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) }

func closeSocket(fd int) {
	fdtrace.Close(fd)
	_ = unix.Close(fd)
}

// raiseLimit raises this process's limit on descriptors as far as it may.
func raiseLimit() {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil && r.Cur < r.Max {
		r.Cur = r.Max
		_ = unix.Prlimit(0, unix.RLIMIT_NOFILE, &r, nil) // if it fails, the user learns when descriptors run out
	}
}

// descriptors is how many descriptors this process may have.
func descriptors() uint64 {
	var r unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &r)
	return r.Cur
}

// pathOf returns the addresses of a connection.
func pathOf(fd int) (path, error) {
	here, err1 := unix.Getsockname(fd)
	there, err2 := unix.Getpeername(fd)
	return path{here: addrOf(here), there: addrOf(there)}, errors.Join(err1, err2)
}

func addrOf(a unix.Sockaddr) netip.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).Unmap()
	}
	return netip.Addr{}
}
