package onesided

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Progress lets the first rank access the memory of the last one, which computes meanwhile and calls nothing of the
// library. All of it must be over long before the last rank would give up.
func Progress(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	const n, rounds, most = 1 << 20, 3, 5 * time.Second
	b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 2*n/8)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	target := c.Size() - 1
	switch c.Rank() {
	case target:
		over := &b.Slice()[0]
		x := uint64(1)
		for start := time.Now(); atomic.LoadUint64(over) == 0; {
			for range 100_000 {
				x = x*6364136223846793005 + 1442695040888963407
			}
			if time.Since(start) > testkit.Limit {
				return conform.Fail(c, "the others need this rank's help (%d)", x)
			}
		}
	case 0:
		start := time.Now()
		for round := range uint64(rounds) {
			data, got := conform.Pattern(0, int(round), n), make([]byte, n)
			var was uint64
			if err := testkit.InOrder(
				func() error { return w.Put(ctx, target, n, ubcoll.Of(data)) },
				func() error { return w.Flush(ctx) },
				func() (err error) { was, err = w.FetchAdd(ctx, target, 8, 1); return err },
				func() error { return w.Accumulate(ctx, target, 16, ubcoll.Of([]uint64{2}), ubcoll.Sum) },
				func() error { return w.Get(ctx, target, ubcoll.Of(got), n) },
				func() error { return w.Signal(ctx, target) }); err != nil {
				return err
			}
			if was != round || !bytes.Equal(got, data) {
				return conform.Fail(c, "round %d: FetchAdd returned %d; right data: %v", round, was, bytes.Equal(got, data))
			}
		}
		took := time.Since(start)
		if _, err := w.FetchAdd(ctx, target, 0, 1); err != nil {
			return err
		}
		if took > most {
			return conform.Fail(c, "it took %v", took)
		}
	}
	for k := 0; k < rounds && c.Rank() == target; k++ {
		if err := w.Wait(ctx, 0); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if got := b.Slice()[2]; c.Rank() == target && got != 2*rounds {
		return conform.Fail(c, "accumulated %d, not %d", got, 2*rounds)
	}
	return errors.Join(w.Close(), b.Free())
}
