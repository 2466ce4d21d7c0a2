package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

// there reports whether the memory of b, freed or not, is still mapped.
func there(c *ubcoll.Comm, b *ubcoll.Buffer[byte]) bool {
	x := inside.Vec(b.Vec())
	v := x.Team()
	return (*inside.Comm)(c).View().Domain().Heap.Lookup(uintptr(v.Ptr), v.Len) != nil
}

// TestFreeUnderMessage frees the memory of posted messages: the messages complete normally, and then the memory is
// gone.
func TestFreeUnderMessage(t *testing.T) {
	for _, policy := range testkit.Sample(2, []register.Policy{register.Auto, register.Off}) {
		for _, n := range testkit.Sample(3, []int{8, 1500, 4000, 70000, 1 << 20}) {
			for _, recv := range []bool{true, false} {
				for _, slice := range []bool{false, true} { // the message views the buffer's slice
					t.Run(fmt.Sprintf("policy=%v/bytes=%d/recv=%v/slice=%v", policy, n, recv, slice), func(t *testing.T) {
						require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Register: policy},
							func(ctx context.Context, c *ubcoll.Comm) error {
								if (c.Rank() == 0) == recv {
									return freeUnder(ctx, c, n, recv, slice)
								}
								return theOther(ctx, c, n, !recv)
							}))
					})
				}
			}
		}
	}
}

// ahead is enough small messages that a message after them is not sent at once.
const ahead = 9

// freeUnder posts a message of n bytes, frees its memory, lets the other rank do its part, and checks the message.
func freeUnder(ctx context.Context, c *ubcoll.Comm, n int, recv, slice bool) error {
	peer := 1 - c.Rank()
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
	if err != nil {
		return err
	}
	v := b.Vec()
	for i := range b.Slice() {
		b.Slice()[i] = value(i)
	}
	if slice {
		v = ubcoll.Of(b.Slice())
	}
	var g p2p.Exchange
	for range ahead {
		if recv {
			g.Recv(peer, v.Slice(0, 8))
		} else {
			g.Send(peer, v.Slice(0, 8))
		}
	}
	if recv {
		g.Recv(peer, v)
	} else {
		g.Send(peer, v)
	}
	r, err := g.Start(ctx, c)
	if err != nil {
		return err
	}
	if err := testkit.InOrder(
		b.Free,
		func() error { return testkit.Wants(b.Free(), ubcoll.ErrClosed) },
		func() error { return testkit.Wants(p2p.Send(ctx, c, peer, b.Vec()), ubcoll.ErrStale) }); err != nil {
		return fmt.Errorf("free: %w", err)
	}
	if !there(c, b) {
		return errors.New("the memory is gone while a message uses it")
	}
	if err := testkit.InOrder(
		func() error { return coll.Barrier(ctx, c) },
		func() error { return r.Wait(ctx) }); err != nil {
		return err
	}
	if recv && g.Received()[ahead] != n {
		return fmt.Errorf("received %v", g.Received())
	}
	if there(c, b) {
		return errors.New("the memory is there when its messages are done")
	}
	return nil
}

func theOther(ctx context.Context, c *ubcoll.Comm, n int, recv bool) error {
	peer, x := 1-c.Rank(), make([]byte, n)
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	for i := range ahead + 1 {
		v := ubcoll.Of(x)
		if i < ahead {
			v = v.Slice(0, 8)
		}
		if !recv {
			if err := p2p.Send(ctx, c, peer, v); err != nil {
				return err
			}
		} else if _, err := p2p.Recv(ctx, c, peer, v); err != nil {
			return err
		}
	}
	for i := range x {
		if recv && x[i] != value(i) {
			return fmt.Errorf("element %d is %d", i, x[i])
		}
	}
	return nil
}

// TestFreeOfAbandoned frees the memory of messages that no call waits for, on a communicator that is aborted and
// closed.
func TestFreeOfAbandoned(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		peer := 1 - c.Rank()
		var bs []*ubcoll.Buffer[byte]
		var g p2p.Exchange
		for i := range 4 {
			b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 8+i*20000)
			if err != nil {
				return err
			}
			bs = append(bs, b)
			if g.Recv(peer, b.Vec()); i == 2 {
				g.Send(c.Rank(), b.Vec())
			}
		}
		r, err := g.Start(ctx, d)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil { // before the other rank aborts
			return err
		}
		for i, b := range bs {
			if err := b.Free(); err != nil || !there(c, b) {
				return fmt.Errorf("free of buffer %d, there: %v: %w", i, there(c, b), err)
			}
		}
		err = coll.Barrier(ctx, c)
		d.Abort(errStop)
		err = errors.Join(err, d.Close(), coll.Barrier(ctx, c))
		for i, b := range bs {
			if there(c, b) {
				return fmt.Errorf("buffer %d is still there: %w", i, err)
			}
		}
		return errors.Join(err, testkit.Wants(r.Wait(ctx), ubcoll.ErrAborted))
	}))
}

// TestFreeOfAdopted frees adopted memory under a message: that works only after the message is done.
func TestFreeOfAdopted(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]byte, 100) // it does not move
		b, err := ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&x[0]), len(x))
		if err != nil {
			return err
		}
		for _, v := range []ubcoll.Vec{b.Vec(), ubcoll.Of(x)} {
			var g p2p.Exchange
			g.Recv(0, v)
			r, err := g.Start(ctx, c)
			if err != nil {
				return err
			}
			if err := testkit.Wants(b.Free(), ubcoll.ErrInUse); err != nil {
				return err
			}
			if err := testkit.InOrder(
				func() error { return p2p.Send(ctx, c, 0, ubcoll.Of([]byte{7})) },
				func() error { return r.Wait(ctx) }); err != nil || x[0] != 7 {
				return fmt.Errorf("received %d: %w", x[0], err)
			}
		}
		return testkit.InOrder(b.Free, func() error { return testkit.Wants(b.Free(), ubcoll.ErrClosed) })
	}))
}

// TestFreeRaces frees buffers while another goroutine makes calls with them: each call succeeds or is ErrStale.
func TestFreeRaces(t *testing.T) {
	rounds := 500
	if race.Enabled || testing.Short() {
		rounds = 50
	}
	for _, n := range []int{8, 2000, 4000, 20000} {
		require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			other := ubcoll.Of(make([]byte, n))
			for round := range rounds {
				b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
				if err != nil {
					return err
				}
				running, ended := make(chan bool), make(chan error, 1)
				go func() {
					var err error
					for i := 0; err == nil; i++ {
						if i == round%10 {
							close(running)
						}
						err = toItself(ctx, c, b.Vec(), other)
					}
					ended <- err
				}()
				<-running
				if err := testkit.InOrder(
					b.Free,
					func() error { return testkit.Wants(<-ended, ubcoll.ErrStale) }); err != nil {
					return fmt.Errorf("%d bytes, round %d: %w", n, round, err)
				}
			}
			return nil
		}), n)
	}
}

// toItself sends v to this rank and receives it in other, and the other way round, so that no message is left if v is
// freed.
func toItself(ctx context.Context, c *ubcoll.Comm, v, other ubcoll.Vec) error {
	if v.Len() > (*inside.Comm)(c).View().Mail.EagerLimit() {
		_, err := p2p.SendRecv(ctx, c, 0, other, 0, v)
		if err == nil {
			_, err = p2p.SendRecv(ctx, c, 0, v, 0, other)
		}
		return err
	}
	if err := p2p.Send(ctx, c, 0, v); err != nil {
		return err
	}
	if _, err := p2p.Recv(ctx, c, 0, other); err != nil {
		return err
	}
	if err := p2p.Send(ctx, c, 0, other); err != nil {
		return err
	}
	_, err := p2p.Recv(ctx, c, 0, v)
	if err != nil {
		_, again := p2p.Recv(ctx, c, 0, other)
		err = errors.Join(err, again)
	}
	return err
}
