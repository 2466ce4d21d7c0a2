package coll_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/inside"
)

// TestAcrossTexts: what LastOp says on rank 0, for every collective, way, and layout of hosts. The buffers are Go slices.
func TestAcrossTexts(t *testing.T) {
	const (
		small, large = 4, 20_000 // elements of a block
		agreement    = " in the messages of the agreement"
		staged       = "copied by the kernel between hosts, staged in the host: Go or foreign memory is never registered"
	)
	ops := map[string]func(ctx context.Context, c *ubcoll.Comm, one, all ubcoll.Vec) error{
		"all_reduce": func(ctx context.Context, c *ubcoll.Comm, one, _ ubcoll.Vec) error {
			return coll.AllReduce(ctx, c, one, one, ubcoll.Sum)
		},
		"reduce": func(ctx context.Context, c *ubcoll.Comm, one, _ ubcoll.Vec) error {
			return coll.Reduce(ctx, c, one, one, ubcoll.Sum, 0)
		},
		"reduce_scatter": func(ctx context.Context, c *ubcoll.Comm, one, all ubcoll.Vec) error {
			return coll.ReduceScatter(ctx, c, one, all, ubcoll.Sum)
		},
		"broadcast": func(ctx context.Context, c *ubcoll.Comm, one, _ ubcoll.Vec) error {
			return coll.Broadcast(ctx, c, one, 0)
		},
		"all_gather": func(ctx context.Context, c *ubcoll.Comm, one, all ubcoll.Vec) error {
			return coll.AllGather(ctx, c, all, one)
		},
		"gather": func(ctx context.Context, c *ubcoll.Comm, one, all ubcoll.Vec) error {
			return coll.Gather(ctx, c, all, one, 0)
		},
		"scatter": func(ctx context.Context, c *ubcoll.Comm, one, all ubcoll.Vec) error {
			return coll.Scatter(ctx, c, one, all, 0)
		},
		"all_to_all": func(ctx context.Context, c *ubcoll.Comm, _, all ubcoll.Vec) error {
			return coll.AllToAll(ctx, c, ubcoll.Of(make([]float32, all.Len())), all)
		},
		"barrier": func(ctx context.Context, c *ubcoll.Comm, _, _ ubcoll.Vec) error { return coll.Barrier(ctx, c) },
	}
	for _, k := range []struct {
		hosts, op, algorithm string
		n                    int
		want                 string // how; then the buffers, of which one or both are as named
	}{
		{"abc", "all_reduce", "ring", large, "ring over 3 hosts, tcp lo; source and destination copied by the kernel between hosts"},
		{"abc", "all_reduce", "doubling", large, "recursive doubling over 3 hosts, tcp lo; source and destination copied"},
		{"abc", "all_reduce", "halving", large, "halving-doubling over 3 hosts, tcp lo; source and destination copied"},
		{"abc", "all_reduce", "", small, "Bruck's all-gather" + agreement + " over 3 hosts, tcp lo; source copied by the kernel between hosts, staged: small"},
		{"ab", "all_reduce", "", small, "recursive doubling" + agreement + " over 2 hosts, tcp lo; source copied"},
		{"aabb", "all_reduce", "ring", large, "two-level: reduce-scatter in the host, ring over 2 hosts, 2 lanes, tcp lo, all-gather in the host; source and destination " + staged},
		{"aab", "all_reduce", "ring", large, "two-level: reduce in the host, ring over 2 hosts, tcp lo, broadcast in the host; source and destination " + staged},
		{"aabb", "all_reduce", "", small, "two-level: reduce in the host, recursive doubling" + agreement + " over 2 hosts, tcp lo, broadcast in the host; source copied"},
		{"abc", "reduce", "tree", large, "binomial tree over 3 hosts, tcp lo; source and destination copied"},
		{"aabb", "reduce", "chain", large, "two-level: reduce-scatter in the host, pipelined chain over 2 hosts, 2 lanes, tcp lo, gather in the host; source and destination " + staged},
		{"abcd", "reduce_scatter", "halving", large, "recursive halving over 4 hosts, tcp lo; source and destination copied"},
		{"abc", "reduce_scatter", "pairwise", large, "pairwise exchange over 3 hosts, tcp lo; source and destination copied"},
		{"abcd", "reduce_scatter", "", small, "routed" + agreement + " (recursive halving) over 4 hosts, tcp lo; source copied"},
		{"aabb", "reduce_scatter", "pairwise", large, "two-level: reduce-scatter in the host, pairwise exchange over 2 hosts, 2 lanes, tcp lo, scatter in the host; source and destination " + staged},
		{"abc", "broadcast", "tree", large, "binomial tree over 3 hosts, tcp lo; source copied"},
		{"abc", "broadcast", "scatter", large, "scatter and all-gather over 3 hosts, tcp lo; source copied"},
		{"aabb", "broadcast", "chain", large, "two-level: scatter in the host, pipelined chain over 2 hosts, 2 lanes, tcp lo, all-gather in the host; source " + staged},
		{"abcd", "all_gather", "doubling", large, "recursive doubling over 4 hosts, tcp lo; source and destination copied"},
		{"abc", "all_gather", "doubling", large, "Bruck's all-gather over 3 hosts, tcp lo; source and destination copied"},
		{"aab", "all_gather", "pairwise", large, "two-level: gather in the host, pairwise exchange over 2 hosts, tcp lo, broadcast in the host; source and destination " + staged},
		{"abc", "gather", "tree", large, "binomial tree over 3 hosts, tcp lo; source and destination copied"},
		{"aabb", "gather", "pairwise", large, "two-level: gather in the host, linear over 2 hosts, 2 lanes, tcp lo; source and destination " + staged},
		{"abc", "gather", "", small, "routed" + agreement + " (binomial tree) over 3 hosts, tcp lo; source copied"},
		{"abc", "scatter", "tree", large, "binomial tree over 3 hosts, tcp lo; source and destination copied"},
		{"aabb", "scatter", "pairwise", large, "two-level: linear over 2 hosts, 2 lanes, tcp lo, scatter in the host; source and destination " + staged},
		{"abc", "all_to_all", "", large, "pairwise exchange over 3 hosts, tcp lo; source and destination copied"},
		{"abc", "all_to_all", "", small, "routed" + agreement + " (Bruck) over 3 hosts, tcp lo; source copied"},
		{"aabb", "all_to_all", "", large, "two-level: gather in the host, pairwise exchange over 2 hosts, 2 lanes, tcp lo, scatter in the host; source and destination " + staged},
		{"abc", "barrier", "", 0, "dissemination over 3 hosts, tcp lo"},
		{"aabb", "barrier", "", 0, "two-level: agreement in the host, recursive doubling over 2 hosts, tcp lo"},
	} {
		t.Run(fmt.Sprintf("%s/%s/%s/%d", k.hosts, k.op, k.algorithm, k.n), func(t *testing.T) {
			t.Setenv(env.Net.Name, "lo")
			requireAll(t, onHostsWith(t, k.hosts, inside.Providers.Network, engine.Options{Algorithm: k.algorithm}, func(c *ubcoll.Comm) error {
				one, all := ubcoll.Of(make([]float32, k.n)), ubcoll.Of(make([]float32, k.n*c.Size()))
				if err := ops[k.op](context.Background(), c, one, all); err != nil {
					return err
				}
				_, said, _ := strings.Cut(c.LastOp().String(), " bytes; ")
				said = strings.Replace(said, " by default costs", "", 1)
				if c.Rank() == 0 && !strings.HasPrefix(said, k.want) {
					return fmt.Errorf("LastOp says %q, not %q", said, k.want)
				}
				return nil
			}))
		})
	}
}
