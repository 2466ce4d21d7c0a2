package bootstrap

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// seesSilence says whether unanswered can tell.
const seesSilence = true

// unanswered reports whether this kernel has asked the one at the other end twice since the last answer, by data sent
// again or by probes, whether data that was sent has not been acknowledged, and how long ago the last acknowledgement
// came. To have asked once is too little: an answer may be lost, and kernels leave out those to probes that follow
// within half a second (tcp_invalid_ratelimit). But where even keep-alive probes had no answer for long before data was
// sent, the data need not be sent again.
func unanswered(conn net.Conn) (asked, sent bool, last time.Duration, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false, false, 0, errors.ErrUnsupported
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false, false, 0, err
	}
	var info *unix.TCPInfo
	failed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(failed, err); err != nil {
		return false, false, 0, err
	}
	sent = info.Unacked > 0
	return sent && info.Retransmits > 1 || info.Probes > 1, sent, time.Duration(info.Last_ack_recv) * time.Millisecond, nil
}

// askOften bounds the time between two attempts to send the same data, or between two probes, which else doubles each
// time: a link that comes back is used soon, and the host of a process that was stopped for long is still asked.
// Kernels before 6.15 cannot.
func askOften(conn net.Conn, limit time.Duration) {
	const rtoMax = 44 // TCP_RTO_MAX_MS, from 1 to 120 s
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		most := min(max(limit/4, time.Second), 2*time.Minute)
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, rtoMax, int(most.Milliseconds()))
		})
	}
}
