package messages

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// bad makes wrong calls, and a right one after each.
func bad(ctx context.Context, c *ubcoll.Comm) error {
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	x := ubcoll.Of(make([]int32, 10))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, k := range []struct {
		name string
		err  error
		want error
	}{
		{"no such rank", p2p.Send(ctx, c, c.Size(), x), ubcoll.ErrArgument},
		{"negative rank", p2p.Send(ctx, c, -1, x), ubcoll.ErrArgument},
		{"bad Vec", p2p.Send(ctx, c, 0, x.Slice(3, 20)), ubcoll.ErrArgument},
		{"on a closed stream", p2p.Send(ctx, c.On(s), 0, x), ubcoll.ErrClosed},
		{"ended context", p2p.Send(ended, c, 0, x), context.Canceled},
		{"a request in a group", ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return testkit.ErrOf(p2p.ISend(ctx, g, 0, x)) }),
			ubcoll.ErrArgument},
	} {
		if !errors.Is(k.err, k.want) {
			return conform.Fail(c, "%s: %v, not %v", k.name, k.err, k.want)
		}
	}
	peer := conform.Partner(c)
	if peer < 0 {
		return nil
	}
	eager := (*inside.Comm)(c).View().Mail.CopiedTo(peer) // smaller with many ranks
	for _, n := range []int{5, eager / 4, eager/4 + 1, 50000} {
		src := make([]int32, n)
		for i := range src {
			src[i] = int32(i)
		}
		dst := make([]int32, n-1)
		large := n*4 > eager // then the sender gets the error, too
		for _, into := range []ubcoll.Vec{ubcoll.Of(dst), ubcoll.Of(make([]float32, n))} {
			if c.Rank() < peer {
				if err := p2p.Send(ctx, c, peer, ubcoll.Of(src)); errors.Is(err, ubcoll.ErrMismatch) != large {
					return conform.Fail(c, "send of %d to a wrong receive: %v", n, err)
				}
				continue
			}
			k, err := p2p.Recv(ctx, c, peer, into)
			var e *ubcoll.Error
			if !errors.Is(err, ubcoll.ErrMismatch) || !errors.As(err, &e) || e.Peer != peer || k != 0 {
				return conform.Fail(c, "wrong receive of %d: %d, %v", n, k, err)
			}
		}
		if dst[0] != 0 || n > 2 && dst[1] != 0 {
			return conform.Fail(c, "a message that was refused has been written")
		}
		back := make([]int32, n)
		k, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(back), peer, ubcoll.Of(src))
		if err != nil || k != n || back[n-1] != src[n-1] {
			return conform.Fail(c, "after a wrong receive: %d, %w", k, err)
		}
	}
	if err := c.Err(); err != nil {
		return conform.Fail(c, "after wrong calls: %w", err)
	}
	return nil
}

// verdicts sends large messages, some of which do not fit, with many small ones behind them.
func verdicts(ctx context.Context, c *ubcoll.Comm) error {
	const behind = 40
	peer := conform.Partner(c)
	if peer < 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(conform.Seed(), uint64(c.Rank()&peer)))
	large := 4000 // more than is copied, and so little that the receiver alone copies
	if c.Hostname(peer) != c.Hostname(c.Rank()) {
		large = 40000
	}
	x := ubcoll.Of(make([]byte, large))
	var g p2p.Exchange
	g.Send(peer, x)
	for range behind {
		g.Send(peer, x.Slice(0, 8))
	}
	for round := range 300 {
		bad := r.IntN(2)
		if c.Rank() < peer {
			if err := g.Do(ctx, c); errors.Is(err, ubcoll.ErrMismatch) != (bad == 1) || bad == 0 && err != nil {
				return conform.Fail(c, "round %d, bad %d: the sender gets %v", round, bad, err)
			}
			continue
		}
		if _, err := p2p.Recv(ctx, c, peer, x.Slice(0, large-bad)); errors.Is(err, ubcoll.ErrMismatch) != (bad == 1) {
			return conform.Fail(c, "round %d, bad %d: the receiver gets %v", round, bad, err)
		}
		for range behind {
			if _, err := p2p.Recv(ctx, c, peer, x); err != nil {
				return conform.Fail(c, "round %d: %w", round, err)
			}
		}
	}
	return nil
}
