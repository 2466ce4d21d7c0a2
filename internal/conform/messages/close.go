package messages

import (
	"context"
	"errors"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// free frees the memory of messages that are posted: they arrive anyway.
func free(ctx context.Context, c *ubcoll.Comm) error {
	right, left := conform.Ring(c)
	for _, size := range []int{8, 1500, 4000, 70000, 1 << 20} {
		src, err1 := ubcoll.Alloc[byte](c, ubcoll.Host, size)
		dst, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, size)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		var g p2p.Exchange
		g.Recv(left, dst.Vec())
		r, err := g.Start(ctx, c)
		if err = errors.Join(err, dst.Free(), coll.Barrier(ctx, c)); err != nil {
			return conform.Fail(c, "%d bytes: %w", size, err)
		}
		var s p2p.Exchange
		s.Send(right, src.Vec())
		q, err := s.Start(ctx, c)
		if err = errors.Join(err, src.Free()); err != nil {
			return conform.Fail(c, "%d bytes: %w", size, err)
		}
		if err := errors.Join(r.Wait(ctx), q.Wait(ctx)); err != nil || g.Received()[0] != size {
			return conform.Fail(c, "%d bytes: received %v: %w", size, g.Received(), err)
		}
	}
	return nil
}

// abandoned aborts and closes communicators while receives wait, and while requests are open that nobody waits for.
func abandoned(ctx context.Context, c *ubcoll.Comm) error {
	for round := range 5 {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 20000)
		if err != nil {
			return err
		}
		peer := (c.Rank() + 1) % c.Size()
		var g p2p.Exchange
		g.Recv(peer, b.Vec())
		r, err := g.Start(ctx, d)
		if err != nil {
			return err
		}
		waited := make(chan error)
		go func() {
			_, err := p2p.Recv(ctx, d, peer, ubcoll.Of(make([]byte, 8)))
			waited <- err
		}()
		time.Sleep(time.Duration(round) * time.Millisecond)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		d.Abort(errors.New("on purpose"))
		if err := errors.Join(d.Close(), b.Free()); err != nil {
			return conform.Fail(c, "round %d: %w", round, err)
		}
		if err := <-waited; !errors.Is(err, ubcoll.ErrAborted) && !errors.Is(err, ubcoll.ErrClosed) {
			return conform.Fail(c, "round %d: a receive under Close gets %v", round, err)
		}
		if err := r.Wait(ctx); !errors.Is(err, ubcoll.ErrAborted) {
			return conform.Fail(c, "round %d: a request after Close gets %v", round, err)
		}
	}
	return nil
}
