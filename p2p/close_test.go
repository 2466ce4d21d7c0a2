package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

var errStop = errors.New("stop")

// posted returns a duplicate of c, and a request on it for 8 bytes from peer.
func posted(ctx context.Context, c *ubcoll.Comm, peer int) (d *ubcoll.Comm, g *p2p.Exchange, r *p2p.Request, err error) {
	if d, err = c.Dup(ctx); err != nil {
		return nil, nil, nil, err
	}
	g = &p2p.Exchange{}
	g.Recv(peer, ubcoll.Of(make([]byte, 8)))
	r, err = g.Start(ctx, d)
	return d, g, r, err
}

// TestCloseUnderWait closes an aborted communicator while one of its receives waits and is moving the messages of
// another communicator: Close waits until the receive no longer uses what both share.
func TestCloseUnderWait(t *testing.T) {
	var held atomic.Bool
	entered, release := make(chan bool), make(chan bool)
	hold := func() {
		if held.CompareAndSwap(true, false) {
			entered <- true
			<-release
		}
	}
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		d, _, r, err := posted(ctx, c, peer)
		if err != nil {
			return err
		}
		if c.Rank() == 1 { // rank 0 aborts
			_, err := p2p.Recv(ctx, c, 0, ubcoll.Of(make([]byte, 8)))
			return errors.Join(testkit.Wants(err, ubcoll.ErrAborted), testkit.Wants(r.Wait(ctx), ubcoll.ErrAborted), d.Close())
		}
		(*inside.Comm)(c).View().Mail.BeforeMove(hold)
		waited, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := p2p.Recv(ctx, c, peer, ubcoll.Of(make([]byte, 8)))
			waited <- err
		}()
		held.Store(true)
		<-entered
		d.Abort(errStop)
		c.Abort(errStop)
		go func() { closed <- errors.Join(d.Close(), c.Close()) }() // the domain's last
		select {
		case err = <-closed:
			err = fmt.Errorf("Close did not wait: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		if err == nil {
			err = <-closed
		}
		return errors.Join(err, testkit.Wants(<-waited, ubcoll.ErrAborted), testkit.Wants(r.Wait(ctx), ubcoll.ErrAborted))
	}))
}

// TestRequestAfterClose tests requests of a closed communicator: completed ones stay so, and the others return the
// reason. Waits of another communicator do not move them any more.
func TestRequestAfterClose(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("broken=%v", broken), func(t *testing.T) {
			require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				peer := 1 - c.Rank()
				d, g, r, err := posted(ctx, c, peer)
				if err != nil {
					return err
				}
				if broken {
					d.Abort(errStop)
				} else {
					err = testkit.InOrder(
						func() error { return p2p.Send(ctx, d, peer, ubcoll.Of(make([]byte, 8))) },
						func() error { return coll.Barrier(ctx, d) })
					(*inside.Comm)(d).View().Mail.Move()
				}
				if err := errors.Join(err, d.Close()); err != nil {
					return err
				}
				for range 100 {
					if err := coll.Barrier(ctx, c); err != nil {
						return err
					}
				}
				done, err := r.Test()
				again := r.Wait(ctx)
				if !done || broken != errors.Is(err, ubcoll.ErrAborted) || broken != errors.Is(again, ubcoll.ErrAborted) ||
					!broken && errors.Join(err, again) != nil {
					return fmt.Errorf("request after Close: done %v, %v, then %v", done, err, again)
				}
				if err := g.Do(ctx, d); !errors.Is(err, ubcoll.ErrClosed) && !errors.Is(err, ubcoll.ErrAborted) {
					return fmt.Errorf("group after Close: %v", err)
				}
				return nil
			}))
		})
	}
}

// TestCloseRaces closes a communicator while another goroutine makes calls. Either Close is ErrBusy, or all later calls
// are ErrClosed, never ErrBusy.
func TestCloseRaces(t *testing.T) {
	rounds := 30
	if testkit.Daily() {
		rounds = 3
	}
	x, y := ubcoll.Of(make([]byte, 8)), ubcoll.Of(make([]byte, 8))
	for _, k := range []struct {
		name string
		op   func(context.Context, *ubcoll.Comm) error
	}{
		{"collective", coll.Barrier},
		{"message", func(ctx context.Context, c *ubcoll.Comm) error {
			_, err := p2p.SendRecv(ctx, c, 0, y, 0, x)
			return err
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				for round := range rounds {
					d, err := c.Dup(ctx)
					if err != nil {
						return err
					}
					running, ended := make(chan bool), make(chan error)
					go func() {
						err := k.op(ctx, d)
						for close(running); err == nil; {
							err = k.op(ctx, d)
						}
						ended <- err
					}()
					<-running
					for err = d.Close(); errors.Is(err, ubcoll.ErrBusy); err = d.Close() {
						runtime.Gosched()
					}
					if op := <-ended; err != nil || !errors.Is(op, ubcoll.ErrClosed) {
						return fmt.Errorf("round %d: Close gets %v, the operation %v", round, err, op)
					}
					if err := testkit.Wants(d.Close(), ubcoll.ErrClosed); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}

// TestCloseTwice closes from two goroutines: one succeeds, and the other gets ErrClosed.
func TestCloseTwice(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for round := range 30 {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			var there atomic.Int32
			closeIt := func() error {
				for there.Add(1); there.Load() < 2; {
					runtime.Gosched()
				}
				return d.Close()
			}
			other := make(chan error)
			go func() { other <- closeIt() }()
			a := closeIt()
			b := <-other
			if a != nil {
				a, b = b, a
			}
			if a != nil || !errors.Is(b, ubcoll.ErrClosed) {
				return fmt.Errorf("round %d: %v and %v", round, a, b)
			}
		}
		return nil
	}))
}

// TestAbandoned begins a call on a communicator that breaks after the call has checked it. The call must not touch
// messages whose memory has been released.
func TestAbandoned(t *testing.T) {
	posted, sent := make(chan bool), make(chan bool)
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			<-posted
			err := p2p.Send(ctx, d, 0, ubcoll.Of([]byte{7}))
			close(sent)
			return errors.Join(err, coll.Barrier(ctx, c), d.Close())
		}
		x := make([]byte, 1)
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 8)
		if err != nil {
			return err
		}
		var g p2p.Exchange
		g.Recv(1, ubcoll.Of(x))
		g.Recv(1, b.Vec())
		r, err := g.Start(ctx, d)
		close(posted)
		<-sent
		if err != nil {
			return err
		}
		d.Abort(errStop)
		err = errors.Join(testkit.Wants(r.Wait(ctx), ubcoll.ErrAborted), b.Free())
		if there(c, b) {
			err = errors.Join(err, errors.New("the memory of an abandoned message is there after Free"))
		}
		y := ubcoll.Of(make([]byte, 1))
		_, later := (*inside.Comm)(d).View().Mail.Do(ctx, "recv", &mail.Message{Peer: 1, Vec: *(*inside.Vec)(&y).Team(), Recv: true, Bytes: 1})
		if x[0] != 0 {
			err = errors.Join(err, errors.New("a message came to memory that its caller has back"))
		}
		return errors.Join(err, testkit.Wants(later, ubcoll.ErrAborted), coll.Barrier(ctx, c), d.Close())
	}))
}
