package tcp

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/internal/fdtrace"
	"github.com/ubcoll/ubcoll/internal/race"
)

// Sockets are non-blocking, and no call moves more than mostIn or mostOut bytes, so no call lasts much longer than a third
// of a millisecond. These calls therefore bypass the runtime. With syscall.Syscall, the runtime's monitor takes the
// processor from each call of more than 20 us and wakes a thread for it, and the calling goroutine queues to get it
// back: with GOMAXPROCS=1 that made an all-reduce of 2 MiB 0.4 times slower. The price is that a garbage collection's
// pause waits for such a call.

const (
	again       = syscall.EAGAIN
	interrupted = syscall.EINTR
)

type iovec = unix.Iovec

func element(p unsafe.Pointer, n int) iovec {
	v := iovec{Base: (*byte)(p)}
	v.SetLen(n)
	return v
}

func readable(fd int) bool {
	p, now := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}, unix.Timespec{}
	n, _, _ := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return n == 1
}

func receive(fd int, p unsafe.Pointer, n int) (int, syscall.Errno) {
	r, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(p), uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	if e == 0 {
		race.Receive(p, int(r))
	}
	return int(r), e
}

// skip reads up to n bytes and discards them.
func skip(fd, n int) (int, syscall.Errno) {
	r, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), 0, uintptr(n),
		unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	return int(r), e
}

func gather(fd int, v []iovec) (int, syscall.Errno) {
	r, _, e := syscall.RawSyscall(syscall.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
	if race.Enabled && e == 0 {
		for i, left := 0, int(r); left > 0; i++ {
			k := min(left, int(v[i].Len))
			race.Receive(unsafe.Pointer(v[i].Base), k)
			left -= k
		}
	}
	return int(r), e
}

func send(fd int, b []byte) (int, syscall.Errno) {
	race.Send(unsafe.Pointer(&b[0]), len(b))
	r, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(r), e
}

// scatter keeps its header in the connection, so that calls allocate nothing.
type scatter struct{ unix.Msghdr }

func (m *scatter) send(fd int, v []iovec) (int, syscall.Errno) {
	m.Iov = &v[0]
	m.SetIovlen(len(v))
	if race.Enabled {
		for i := range v {
			race.Send(unsafe.Pointer(v[i].Base), int(v[i].Len))
		}
	}
	r, _, e := syscall.RawSyscall(syscall.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.Msghdr)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return int(r), e
}

// retries is how many segments the kernel has sent again on a connection.
func retries(fd int) (n uint64, ok bool) {
	i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return uint64(i.Total_retrans), true
}

// outstanding is how many bytes the kernel has that the peer's has not acknowledged.
func outstanding(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// unanswered reports whether the kernel has sent something, also a probe, after the last acknowledgement came, and when
// that was. The peer's process may be stopped: its kernel then answers each probe, however rarely these are sent.
func unanswered(fd int) (waits bool, heard time.Duration) {
	i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, 0
	}
	waits = i.Probes > 0 || i.Unacked > 0 && i.Last_data_sent < i.Last_ack_recv
	return waits, time.Duration(i.Last_ack_recv) * time.Millisecond
}

func shutdown(fd int) { _ = unix.Shutdown(fd, unix.SHUT_WR) }

func closeFd(fd int) {
	fdtrace.Close(fd)
	_ = unix.Close(fd)
}
