package footprint

import (
	"context"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Churn registers and deregisters, allocates and frees 100,000 times, and checks that descriptors, mappings,
// goroutines and resident memory have not grown.
func Churn(ctx context.Context, c *ubcoll.Comm) error {
	round := func(k int) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096*(1+k%3))
		if err != nil {
			return err
		}
		b.Slice()[k%4096] = 1
		for i := 0; i < 10; i++ {
			r, err := c.RegisterBuffer(b.Vec().Slice(i, 1000+i))
			if err != nil {
				return err
			}
			if err := r.Close(); err != nil {
				return err
			}
		}
		return b.Free()
	}
	// First enough rounds for the Go heap to reach its size, on all ranks: they may share the process.
	for k := 0; k < 1000; k++ {
		if err := round(k); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	before, err := footprint()
	if err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	for k := 0; k < 10000; k++ {
		if err := round(k); err != nil {
			return conform.Fail(c, "round %d: %w", k, err)
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	before.maps, before.kib = before.maps+8, before.kib+8<<10 // the Go heap adds mappings now and then
	return awaitFootprint(ctx, c, before)
}
