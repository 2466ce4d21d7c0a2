package bootstrap

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// queue is a listener whose visitors come from the test.
type queue struct {
	net.Listener
	conns  chan net.Conn
	errs   chan error
	closed chan struct{}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case err := <-q.errs:
		return nil, err
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// proving calls a function before the second write, which is rank 0's proof.
type proving struct {
	net.Conn
	writes    int
	meanwhile func()
}

func (p *proving) Write(b []byte) (int, error) {
	if p.writes++; p.writes == 2 {
		p.meanwhile()
	}
	return p.Conn.Write(b)
}

// A rank that has proved its identity is not dropped, however many others come before it hears so: it would not try
// again.
func TestProvedIsNotDropped(t *testing.T) {
	defer testkit.NoLeaks(t)()
	c := config{rank: 1, size: 2, secret: []byte("0123456789abcdef-test")}
	q := &queue{conns: make(chan net.Conn), closed: make(chan struct{})}
	visitors := make(chan visitor)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.accept(ctx, q, visitors)
	}()
	mine, theirs := net.Pipe()
	defer func() {
		mine.Close()
		cancel()
		close(q.closed)
		<-over
	}()
	told := make(chan error, 1)
	go func() { told <- c.introduce(mine) }()
	q.conns <- &proving{theirs, 0, func() {
		for range maxHandshakes + 1 { // when the last one is accepted, the others have been noted
			silent, conn := net.Pipe()
			t.Cleanup(func() { silent.Close() })
			q.conns <- conn
		}
	}}
	for v := range visitors {
		if v.err != nil && v.Rank == 0 {
			continue // a silent visitor
		}
		require.NoError(t, v.err)
		require.Equal(t, uint32(1), v.Rank)
		break
	}
	require.NoError(t, <-told)
}

// If rank 0 runs out of descriptors, the error about missing ranks says so.
func TestOutOfDescriptors(t *testing.T) {
	defer testkit.NoLeaks(t)()
	c := config{size: 3, network: "unix", addr: "@x"}
	q := &queue{errs: make(chan error), closed: make(chan struct{})}
	visitors, over, gathered := make(chan visitor), make(chan struct{}), make(chan error)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(over)
		c.accept(ctx, q, visitors)
	}()
	waiting, timeIsUp := context.WithCancel(context.Background())
	r := newRoot(c.size)
	go func() { gathered <- r.gather(waiting, c, "@x", visitors) }()
	for range 2 { // when the second is accepted, the first has been reported
		q.errs <- &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	timeIsUp()
	err := <-gathered
	cancel()
	close(q.closed)
	<-over
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.ErrorContains(t, err, "ranks 1, 2 of 3 did not come (rank 0 needs a descriptor for each process")
	require.ErrorContains(t, err, "`ulimit -n`")
}

// Rank 0's error says where it listened, and if other hosts cannot reach that address.
func TestListensOnLoopback(t *testing.T) {
	defer LingerFor(0)()
	for _, k := range []struct{ host, hint string }{
		{"localhost", " (localhost resolves to loopback on this host, which no other reaches: "},
		{"127.0.0.1", " (loopback, which no other host reaches: "},
	} {
		var at string
		var err error
		for {
			l, err2 := net.Listen("tcp", k.host+":0")
			require.NoError(t, err2)
			at = l.Addr().String()
			_, port, _ := net.SplitHostPort(at)
			l.Close()
			ctx, timeIsUp := context.WithCancel(context.Background())
			hosted := make(chan error, 1)
			go func() {
				_, err := config{size: 2, network: "tcp", addr: net.JoinHostPort(k.host, port)}.host(ctx)
				hosted <- err
			}()
			testkit.Eventually(t, func() bool {
				conn, err := net.Dial("tcp", at)
				if err == nil {
					conn.Close()
				}
				return err == nil || len(hosted) > 0
			})
			timeIsUp()
			if err = <-hosted; !errors.Is(err, syscall.EADDRINUSE) { // another process may have the port by now
				break
			}
		}
		require.ErrorIs(t, err, fault.ErrTimeout)
		require.ErrorContains(t, err, "rank 1 of 2 did not come to "+at+k.hint)
		require.ErrorContains(t, err, "give rank 0's address in UBCOLL_RENDEZVOUS")
	}
}

// A rank that finds no rank 0 reports the addresses that it tried.
func TestNobodyListens(t *testing.T) {
	var err error
	for timeout := time.Second; timeout < testkit.Limit; timeout *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		_, err = config{rank: 1, size: 2, network: "tcp", addr: "localhost:1"}.dial(ctx)
		cancel()
		if errors.Is(err, fault.ErrTimeout) && strings.Contains(err.Error(), "refused") {
			break
		}
	}
	require.ErrorIs(t, err, fault.ErrTimeout)
	require.Regexp(t, `rank 0 does not listen at .*(127\.0\.0\.1|\[::1\]):1 \(localhost resolves to loopback on this host.*UBCOLL_RENDEZVOUS\) \(.*refused\)`,
		err.Error())

	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for addr, want := range map[string]string{
		"a:7077":         "at 10.77.0.9:7077 (if it runs, a may resolve to loopback there: give its address in UBCOLL_RENDEZVOUS) (dial",
		"10.77.0.9:7077": "at 10.77.0.9:7077 (dial",
	} {
		c := config{rank: 1, size: 2, network: "tcp", addr: addr}
		require.ErrorContains(t, c.noRootError([]string{"10.77.0.9:7077"}, refused), want)
		require.ErrorContains(t, c.noRootError(nil, errors.New("no such host")), "rank 0 does not listen (no such host)")
	}
}
