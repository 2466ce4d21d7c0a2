package net

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// deaf lets the kernel drop all that comes for a socket, also acknowledgements and what asks for a connection.
func deaf(fd int) error {
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none})
}

// deafListener is deaf for a listener.
func deafListener(l syscall.Conn) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = deaf(int(fd)) })
	return errors.Join(failed, err)
}

// mute keeps the kernel from asking, for a connection on which nothing else is sent, whether the peer's answers, and from ending
// it.
func mute(fd int) error {
	return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 0))
}

// unacknowledged reports whether the kernel has something that the peer's has not acknowledged.
func unacknowledged(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && n > 0
}

// replace puts one end of a new pair of sockets in the place of e's, which it returns with the other end. The caller closes
// both. Nobody reads or writes e's socket meanwhile.
func (p *poll) replace(e *end) (old, other int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(pair[0])
	old, err = unix.FcntlInt(uintptr(e.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(pair[1])
		return -1, -1, err
	}
	watched := p.ends[e.id] == e
	if watched {
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, e.fd, nil)
	}
	if err = unix.Dup3(pair[0], e.fd, unix.O_CLOEXEC); err == nil && watched {
		err = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, e.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: e.id})
	}
	if err != nil {
		unix.Close(pair[1])
		unix.Close(old)
		return -1, -1, err
	}
	for _, fd := range []int{old, pair[1]} {
		fdtrace.Open(fd, "socket of a cut")
	}
	return old, pair[1], nil
}
