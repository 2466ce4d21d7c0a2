package bootstrap

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// heard is what looks at a connection find.
func TestHeard(t *testing.T) {
	type look struct {
		asked bool
		last  time.Duration
		sent  bool
	}
	// dead is a host that answers nothing from the first look on, and is asked once idle has passed.
	dead := func(limit, idle time.Duration) (looks []look) {
		every := (&silence{limit: limit}).interval()
		for last := time.Duration(0); last < limit+2*every; last += every {
			looks = append(looks, look{last >= idle, last, false})
		}
		return looks
	}
	many := func(n int, l ...look) (all []look) {
		for range n {
			all = append(all, l...)
		}
		return all
	}
	for _, c := range []struct {
		name   string
		limit  time.Duration
		looks  []look
		silent bool
	}{
		{"idle", 5 * time.Second, many(100, look{false, 900 * time.Millisecond, false}), false},
		{"busy", 5 * time.Second, many(100, look{true, 10 * time.Millisecond, false}), false},
		{"dead, data on its way", 5 * time.Second, dead(5*time.Second, 0), true},
		{"dead, idle", 5 * time.Second, dead(5*time.Second, 2100*time.Millisecond), true},
		{"dead, least limit", time.Second, dead(time.Second, 400*time.Millisecond), true},
		{"dead, most", time.Hour, dead(time.Hour, 30*time.Second), true},
		{"back before the limit", 5 * time.Second, append(dead(4*time.Second, 0), look{true, 100 * time.Millisecond, false}), false},
		{"just asked again", 5 * time.Second, append(many(9, look{false, time.Minute, false}), look{true, time.Minute, false}), false},
		{"stopped: probes are rare, and answered", 5 * time.Second, many(50, look{false, time.Minute, false}, look{true, time.Minute, false}), false},
		{"this machine paused, and asks only now", 5 * time.Second, []look{{false, 0, false}, {true, time.Hour, false}, {false, 0, false}}, false},
		{"data sent after long silence, once", 5 * time.Second, many(9, look{false, 6 * time.Second, true}), true},
		{"data sent, answered before", 5 * time.Second, many(100, look{false, 4 * time.Second, true}), false},
		{"no answer for an hour, asked for a second", time.Hour, many(2, look{true, 2 * time.Hour, false}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := silence{limit: c.limit}
			silent := false
			for _, l := range c.looks {
				silent = s.heard(l.asked, l.sent, l.last) || silent
			}
			require.Equal(t, c.silent, silent)
		})
	}
}

// Keep-alive probes last as long as the limit, and no longer than systems allow.
func TestKeepAlive(t *testing.T) {
	for _, c := range []struct {
		limit, interval time.Duration
		count           int
	}{
		{0, time.Second, 3}, {time.Second, time.Second, 3}, {5 * time.Second, time.Second, 5}, {5500 * time.Millisecond, time.Second, 6},
		{2 * time.Minute, time.Second, 120}, {3 * time.Minute, 2 * time.Second, 120}, {time.Hour, 30 * time.Second, 120},
	} {
		t.Run(c.limit.String(), func(t *testing.T) {
			a := config{netTimeout: c.limit}.keepAlive()
			require.True(t, a.Enable)
			require.Equal(t, time.Second, a.Idle)
			require.Equal(t, c.interval, a.Interval)
			require.Equal(t, c.count, a.Count)
		})
	}
}

// The error of a connection that ended because its host is gone names the limit, whoever noticed.
func TestLostText(t *testing.T) {
	tcp := config{network: "tcp", netTimeout: 7 * time.Second}
	reached := tcp.wire(nil)
	reached.reached.Store(true)
	const silent = "its host has not answered for 7s (UBCOLL_NET_TIMEOUT)"
	for _, c := range []struct {
		name string
		w    *wire
		err  error
		want string
	}{
		{"silent", reached, io.ErrUnexpectedEOF, silent},
		{"keep-alive", tcp.wire(nil), &net.OpError{Err: syscall.ETIMEDOUT}, silent},
		{"no route", tcp.wire(nil), fmt.Errorf("read: %w", syscall.EHOSTUNREACH), silent},
		{"reset", tcp.wire(nil), syscall.ECONNRESET, "connection failed: " + syscall.ECONNRESET.Error()},
		{"end", tcp.wire(nil), io.EOF, "ended without closing its bootstrap"},
		{"no other host", config{network: "unix", netTimeout: time.Second}.wire(nil), fault.ErrMismatch,
			"connection failed: " + fault.ErrMismatch.Error()},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, c.w.lostText(c.err)) })
	}
}

// A watch ends with its end, and is not begun where no other host is.
func TestWatchEnds(t *testing.T) {
	defer testkit.NoLeaks(t)()
	watchSilence(0, nil)()
	end := watchSilence(8*time.Millisecond, func() []*wire { return nil })
	end()
	end()
}
