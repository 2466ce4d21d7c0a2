package onesided

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// inOrder: what a rank gets, and what an atomic finds, is what the same rank has put, packed or accumulated just before, short or
// long; and in a window with strict ordering the later of two puts to a place stays.
func inOrder(ctx context.Context, c *ubcoll.Comm) error {
	const rounds, n = 50, 8 << 10 // words: more than what travels in one message
	peer := conform.Partner(c)
	b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 3*n)
	if err != nil {
		return err
	}
	theirs, mine := b.Vec().Slice(0, n), b.Slice()[n:2*n] // what the partner changes, and what this rank puts
	here, got := b.Vec().Slice(n, 2*n), b.Slice()[2*n:]
	short, there := here.Slice(0, 1), b.Vec().Slice(2*n, 3*n)
	w, err := c.RegisterWindow(ctx, theirs, ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	strict, err := c.RegisterWindow(ctx, theirs, ubcoll.WindowStrictOrdering)
	if err != nil {
		return err
	}
	if peer >= 0 {
		r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{})
		if err != nil {
			return err
		}
		ch, err := p2p.Connect(ctx, c, peer, r)
		if err != nil {
			return err
		}
		get := func() error { return w.Get(ctx, peer, there, 0) }
		for _, k := range []struct {
			name     string
			put, get func() error
		}{
			{"channel", func() error { return ch.Put(ctx, 0, 8*n, 8) }, func() error { return ch.Get(ctx, 16*n, 0, 8*n) }},
			{"window", func() error { return w.Put(ctx, peer, 0, short) }, get},
			{"long put", func() error { return w.Put(ctx, peer, 0, here) }, get},
			{"accumulate", func() error { return w.Accumulate(ctx, peer, 0, short, ubcoll.Replace) }, get},
			{"short get", func() error { return w.Put(ctx, peer, 0, short) },
				func() error { return w.Get(ctx, peer, there.Slice(0, 2), 0) }},
			{"atomic", func() error { return w.Put(ctx, peer, 0, short) }, func() (err error) {
				got[0], err = w.FetchAdd(ctx, peer, 0, 1)
				return err
			}},
			{"get after an atomic", func() error {
				mine[0]--
				err := w.Put(ctx, peer, 0, here)
				if err == nil {
					_, err = w.FetchAdd(ctx, peer, 0, 1)
				}
				mine[0]++
				return err
			}, get},
			{"strict", func() error {
				mine[0]--
				err := strict.Put(ctx, peer, 0, short)
				mine[0]++
				return errors.Join(err, strict.Put(ctx, peer, 0, here), strict.Flush(ctx))
			}, get},
		} {
			for i := range uint64(rounds) {
				mine[0] = 1 + i
				if err := errors.Join(k.put(), k.get()); err != nil {
					return err
				}
				if got[0] != 1+i {
					return conform.Fail(c, "%s: got %d after a put of %d", k.name, got[0], 1+i)
				}
			}
		}
		if err := errors.Join(coll.Barrier(ctx, c), ch.Close(), r.Close()); err != nil {
			return err
		}
	} else if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return errors.Join(w.Close(), strict.Close(), b.Free())
}
