package p2p_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenMemory: what a rank has for messages, channels and windows between hosts depends on whom it has talked to, not on how many there
// are. docs/scale.md has what is computed for large jobs.
func TestBetweenMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory of its own")
	}
	const ranks = 9
	var none, all, onesidedToo int
	require.NoError(t, conform.Block(1, 1, 1, 1, 1, 1, 1, 1, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
		measure := func(into *int) error {
			return testkit.InOrder(
				func() error { return coll.Barrier(ctx, c) },
				func() error {
					if c.Rank() == 0 {
						*into = testkit.HeapInUse()
					}
					return nil
				},
				func() error { return coll.Barrier(ctx, c) })
		}
		if err := measure(&none); err != nil {
			return err
		}
		for by := 1; by < ranks; by++ {
			for _, n := range []int{8, 8, 8, 8, 20_000, 20_000, 100_000} { // all classes, and all of their memory
				to, from := (c.Rank()+by)%ranks, (c.Rank()+ranks-by)%ranks
				if _, err := p2p.SendRecv(ctx, c, from, ubcoll.Of(make([]byte, n)), to, ubcoll.Of(make([]byte, n))); err != nil {
					return err
				}
			}
		}
		if err := measure(&all); err != nil {
			return err
		}
		r, err := conform.NewRegion(c, 4096)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, r.Buf.Vec(), ubcoll.WindowDefault)
		if err != nil {
			return err
		}
		var ends sync.WaitGroup
		errs := make([]error, ranks)
		for p := range ranks {
			if p != c.Rank() {
				ends.Go(func() {
					ch, err := p2p.Connect(ctx, c, p, r.Reg)
					if err == nil {
						err = testkit.InOrder(func() error { return ch.PutWithSignal(ctx, 0, 0, 100) }, func() error { return ch.Wait(ctx) },
							func() error { return ch.Get(ctx, 0, 0, 4096) }, func() error { return w.Signal(ctx, p) }, func() error { return w.Wait(ctx, p) })
					}
					errs[p] = err
				})
			}
		}
		ends.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return measure(&onesidedToo)
	}))
	// Barriers have made some connections before.
	got, most := (all-none)/ranks, hosts.Sum(mail.MemoryBetween(ranks, ranks-1))
	least := most - (ranks-1)*hosts.PairBytes(0)
	t.Logf("%d pairs: %d bytes a rank; computed: %d", ranks-1, got, most)
	require.Greater(t, float64(got), 0.9*float64(least))
	require.Less(t, float64(got), 1.1*float64(most))
	got, most = (onesidedToo-all)/ranks, hosts.Sum(onesided.MemoryBetween(ranks, ranks-1))
	t.Logf("one-sided, %d pairs: %d bytes a rank; computed: %d", ranks-1, got, most)
	require.Less(t, float64(got), 1.1*float64(most))
	sum := func(ranks, pairs int) int {
		return hosts.Sum(mail.MemoryBetween(ranks, pairs)) + hosts.Sum(onesided.MemoryBetween(ranks, pairs))
	}
	for _, n := range []int{64, 1024, 4095} {
		for _, pairs := range []int{1, 16} {
			t.Logf("%d ranks, %d pairs: %v, %v of it one-sided", n, pairs, sum(n, pairs), hosts.Sum(onesided.MemoryBetween(n, pairs)))
		}
	}
	require.Less(t, sum(4095, 16), 8<<20)
}
