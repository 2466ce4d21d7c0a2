package bootstrap

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// queue is a listener whose visitors a test makes.
type queue struct {
	net.Listener
	conns  chan net.Conn
	closed chan struct{}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// proving has something happen before the second write, which is rank 0's proof.
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

// A rank that has proved who it is is not dropped any more, however many come while it is told so: it would not try again.
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
		for range maxHandshakes + 1 { // the last one is taken when the others have been noted
			silent, conn := net.Pipe()
			t.Cleanup(func() { silent.Close() })
			q.conns <- conn
		}
	}}
	for v := range visitors {
		if v.err != nil && v.Rank == 0 {
			continue // one that was silent
		}
		require.NoError(t, v.err)
		require.Equal(t, uint32(1), v.Rank)
		break
	}
	require.NoError(t, <-told)
}
