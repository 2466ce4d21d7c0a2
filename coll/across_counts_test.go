package coll_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestAcrossCountsMismatches: a host that waits for another one's counts learns that there are none to come, whichever
// hosts have told each other theirs by then.
func TestAcrossCountsMismatches(t *testing.T) {
	ctx := context.Background()
	gather := func(root int) func(c *ubcoll.Comm) error {
		return func(c *ubcoll.Comm) error {
			n := c.Size()
			ones := make([]int, n)
			for i := range ones {
				ones[i] = 1
			}
			return coll.GatherV(ctx, c, ubcoll.Of(make([]int32, n)), ones, ubcoll.Of([]int32{1}), root)
		}
	}
	scatter := func(root int) func(c *ubcoll.Comm) error {
		return func(c *ubcoll.Comm) error {
			n := c.Size()
			ones := make([]int, n)
			for i := range ones {
				ones[i] = 1
			}
			return coll.ScatterV(ctx, c, ubcoll.Of([]int32{1}), ubcoll.Of(make([]int32, n)), ones, root)
		}
	}
	exchange := func(c *ubcoll.Comm) error {
		n := c.Size()
		ones := make([]int, n)
		for i := range ones {
			ones[i] = 1
		}
		return coll.AllToAllV(ctx, c, ubcoll.Of(make([]int32, n)), ones, ubcoll.Of(make([]int32, n)), ones)
	}
	barrier := func(c *ubcoll.Comm) error { return coll.Barrier(ctx, c) }
	type call = func(c *ubcoll.Comm) error
	for _, k := range []struct {
		name, hosts string
		calls       []call
	}{
		{"roots differ", "ab", []call{gather(0), gather(1)}},
		{"roots differ, scatter", "ab", []call{scatter(0), scatter(1)}},
		{"the root waits", "abc", []call{barrier, gather(1), gather(1)}},
		{"the root waits, scatter", "abc", []call{barrier, scatter(1), scatter(1)}},
		{"the first waits", "abc", []call{gather(0), gather(0), barrier}},
		{"two roots and another", "abc", []call{gather(0), gather(1), scatter(2)}},
		{"one is told in the last round", "abc", []call{exchange, barrier, exchange}},
		{"one is told in the first round", "abc", []call{exchange, exchange, barrier}},
		{"five hosts", "abcde", []call{barrier, gather(1), gather(1), gather(1), gather(1)}},
		{"five hosts, in pairs of calls", "abcde", []call{gather(2), exchange, gather(2), exchange, gather(2)}},
		{"four hosts", "abcd", []call{gather(3), gather(3), barrier, gather(3)}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var mu sync.Mutex
			errs := map[int]error{}
			o := engine.Options{Timeout: testkit.Limit / 40}
			requireAll(t, onHostsWith(t, k.hosts, inside.Providers.Network, o, func(c *ubcoll.Comm) error {
				err := k.calls[c.Rank()](c)
				mu.Lock()
				errs[c.Rank()] = err
				mu.Unlock()
				return checkAcross(c, 10, 0)
			}))
			for r, err := range errs {
				require.ErrorIs(t, err, fault.ErrMismatch, "rank %d", r)
			}
		})
	}
}
