package onesided

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Sums lets all ranks, of the owner's host and of others, change the same words of rank 0 at once, CONFORM_SUMS times each:
// by FetchAdd, by CompareAndSwap and, a tenth as often, by Accumulate. All sums are exact.
func Sums(ctx context.Context, c *ubcoll.Comm) error {
	rounds, err := conform.Number("CONFORM_SUMS", 2000)
	if err != nil {
		return err
	}
	const n = 1000 // elements that are accumulated: several calls between hosts
	b, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 2*n)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	own := uint64(c.Rank() + 1)
	var errs [4]error
	var wg sync.WaitGroup
	repeat := func(k, times int, do func() error) {
		wg.Go(func() {
			for i := 0; i < times && errs[k] == nil; i++ {
				errs[k] = do()
			}
		})
	}
	seen := uint64(0)
	repeat(0, rounds, func() error {
		was, err := w.FetchAdd(ctx, 0, 0, own)
		if err == nil && was < seen+own && seen > 0 {
			err = conform.Fail(c, "FetchAdd returned %d after %d", was, seen)
		}
		seen = was
		return err
	})
	repeat(1, rounds, func() error { return swapIn(ctx, w, 0, 8) })
	// Elements of 4 bytes: two share what is exchanged at once.
	small, large := slices.Repeat([]int32{-int32(own)}, n), slices.Repeat([]uint64{own << 40}, n/2)
	repeat(2, rounds/10, func() error { return w.Accumulate(ctx, 0, 16, ubcoll.Of(small), ubcoll.Sum) })
	repeat(3, rounds/10, func() error { return w.Accumulate(ctx, 0, 16+4*n, ubcoll.Of(large), ubcoll.Sum) })
	wg.Wait()
	if err := errors.Join(append(errs[:], w.Flush(ctx))...); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() == 0 {
		ranks, r := uint64(c.Size()), uint64(rounds)
		all := ranks * (ranks + 1) / 2
		got := b.Slice()
		if got[0] != all*r || got[1] != ranks*r {
			return conform.Fail(c, "sums of %d and %d, not %d and %d", got[0], got[1], all*r, ranks*r)
		}
		for i := range n / 2 {
			for half := range 2 {
				if x := int32(got[2+i] >> (32 * half)); x != -int32(all*(r/10)) {
					return conform.Fail(c, "element %d of %v: %d, not %d", 2*i+half, dtype.Int32, x, -int32(all*(r/10)))
				}
			}
			if x := got[2+n/2+i]; x != all*(r/10)<<40 {
				return conform.Fail(c, "element %d of %v: %d, not %d", i, dtype.Uint64, x, all*(r/10)<<40)
			}
		}
	}
	return errors.Join(coll.Barrier(ctx, c), w.Close(), b.Free())
}
