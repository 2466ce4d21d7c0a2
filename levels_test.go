package ubcoll_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestLevels checks what LastOp says about each level, on one host and on two: "direct" is what no level copied.
func TestLevels(t *testing.T) {
	const (
		exchange = `recursive doubling in the messages of the agreement over 2 hosts, tcp [^ :;,]+`
		tree     = `binomial tree over 2 hosts by default costs, tcp [^ :;,]+`
		halving  = `halving-doubling over 2 hosts by default costs, tcp [^ :;,]+`
		halving2 = `halving-doubling over 2 hosts by default costs, 2 lanes, tcp [^ :;,]+`
		copied   = `: copied by the kernel$`
		push     = `^in the host reduce-scatter and all-gather \(push\), shared memory: direct$`
		staged   = `^in the host reduce-scatter and all-gather \(two-shot\), shared memory: staged: Go or foreign memory is never registered$`
		rest2    = `^halving-doubling over 2 hosts by default costs, 2 lanes, tcp: copied by the kernel$`
	)
	for _, k := range []struct {
		name       string
		ranks      conform.Layout
		registered bool
		n          int
		op         func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error
		want       string   // rank 0's String
		levels     []string // rank 0's, regular expressions
		direct     bool     // the destination, on rank 0
		why        string
		rest       []string // another rank's levels on host 0; nil: like rank 0's
	}{
		{"alone", conform.Block(1), true, 1 << 20, allReduce, `: this rank's alone`, []string{"in the host copy, memory: this rank's alone"},
			false, "", nil},
		{"registered", conform.Block(2), true, 1 << 20, allReduce, `^all_reduce #\d+: push, 4194304 bytes; source: direct; destination: direct; took`,
			[]string{"^in the host push, shared memory: direct$"}, true, "", nil},
		{"Go slice", conform.Block(2), false, 1 << 20, allReduce, `; source: staged: Go or foreign memory is never registered;`,
			[]string{"^in the host [a-z-]+, shared memory: staged: Go or foreign memory is never registered$"}, false, "^Go or foreign", nil},
		{"small", conform.Block(2), true, 4, allReduce, `: eager, 16 bytes; source: staged: small enough`,
			[]string{"^in the host eager, shared memory: source staged: small enough to travel with the descriptor, destination staged: its own"},
			false, "^its own rank alone", nil},
		{"barrier", conform.Block(2), true, 0, barrier, `^barrier #\d+: [a-z]+, 0 bytes$`, []string{"^in the host [a-z]+, shared memory$"},
			false, "^$", nil},
		{"2 hosts, registered", conform.Block(1, 1), true, 1 << 20, allReduce,
			`^all_reduce #\d+: 4194304 bytes; ` + halving + `; source and destination copied by the kernel between hosts; took`,
			[]string{"^" + halving + copied}, false, "^copied by the kernel between hosts$", nil},
		{"2 hosts, Go slice", conform.Block(1, 1), false, 1 << 20, broadcast,
			`^broadcast #\d+: 4194304 bytes; ` + tree + `; destination copied by the kernel between hosts; took`,
			[]string{"^" + tree + copied}, false, "^copied by the kernel between hosts$", nil},
		{"2 hosts, small", conform.Block(1, 1), true, 4, allReduce, `: 16 bytes; ` + exchange + `; source copied by the kernel between hosts, ` +
			`staged: small enough to travel with what the hosts say; destination copied by the kernel between hosts, staged: its own rank alone`,
			[]string{"^" + exchange + copied}, false, "^its own rank alone", nil},
		{"2 hosts of 2, registered", conform.Block(2, 2), true, 1 << 20, allReduce, `: 4194304 bytes; two-level: reduce-scatter in the host, ` +
			halving2 + `, all-gather in the host; source and destination direct in the host, copied by the kernel between hosts; took`,
			[]string{push, "^" + halving2 + copied}, false, "^copied by the kernel between hosts$", []string{push, rest2}},
		{"2 hosts of 2, Go slice", conform.Block(2, 2), false, 1 << 20, allReduce, `: 4194304 bytes; two-level: reduce-scatter in the host, ` +
			halving2 + `, all-gather in the host; source and destination copied by the kernel between hosts, staged in the host: Go or foreign`,
			[]string{staged, "^" + halving2 + copied}, false, "^Go or foreign", []string{staged, rest2}},
		{"2 hosts of 2, small", conform.Block(2, 2), true, 4, allReduce, `: 16 bytes; two-level: reduce in the host, ` + exchange +
			`, broadcast in the host; source copied by the kernel between hosts, staged in the host: small enough .*; destination copied`,
			[]string{"^in the host reduce and broadcast \\(eager\\), shared memory: source staged: small enough", "^" + exchange + copied}, false, "^its own rank alone",
			[]string{"^in the host reduce and broadcast", "^recursive doubling in the messages of the agreement over 2 hosts, tcp" + copied}},
		{"2 hosts, barrier", conform.Block(2, 1), true, 0, barrier, `^barrier #\d+: 0 bytes; two-level: agreement in the host, recursive doubling over 2 hosts, tcp`,
			[]string{"^in the host agreement \\(descriptors\\), shared memory$", "^recursive doubling over 2 hosts, tcp [^ :]+" + copied}, false, "^$", nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Setenv("UBCOLL_CUDA", "off")
			infos := make([]ubcoll.OpInfo, len(k.ranks))
			var mu sync.Mutex
			o := ubcoll.Options{Timeout: testkit.Limit}
			require.NoError(t, k.ranks.Run(t.Context(), o, func(ctx context.Context, c *ubcoll.Comm) error {
				v := ubcoll.Of(make([]float32, k.n))
				if k.registered {
					b, err := ubcoll.Alloc[float32](c, ubcoll.Host, k.n)
					if err != nil {
						return err
					}
					if _, err := b.Register(c); k.n > 0 && err != nil {
						return err
					}
					v = b.Vec()
				}
				err := k.op(ctx, c, v)
				mu.Lock()
				defer mu.Unlock()
				infos[c.Rank()] = c.LastOp()
				return err
			}))
			matches(t, k.levels, infos[0])
			if k.rest != nil {
				matches(t, k.rest, infos[1])
			}
			require.Regexp(t, k.want, infos[0].String())
			require.Equal(t, k.direct, infos[0].Dst.Direct)
			require.Regexp(t, k.why, infos[0].Dst.Why)
			spans := 0
			if len(slices.Compact(slices.Clone(k.ranks))) > 1 {
				spans = 2
			}
			lanes := 1 + strings.Count(k.levels[len(k.levels)-1], "2 lanes")
			for _, o := range infos {
				for _, l := range o.Levels {
					require.Equal(t, map[string]int{"in the host": 0, "between hosts": lanes}[l.Where], l.Lanes)
					require.Equal(t, map[string]int{"in the host": 0, "between hosts": spans}[l.Where], l.Hosts)
				}
			}
		})
	}
	t.Run("device", func(t *testing.T) {
		gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			b, err := gputest.Floats(ctx, c, dev, 1000, 1)
			if err != nil {
				return err
			}
			if err := allReduce(ctx, c, b.Vec()); err != nil {
				return err
			}
			if o := c.LastOp(); len(o.Levels) != 1 || !strings.HasPrefix(o.Levels[0].Transport, "GPU kernels") || o.Levels[0].Algorithm != o.Algorithm {
				return conform.Fail(c, "%+v", o)
			}
			return b.Free()
		})
	})
}

func allReduce(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
	return coll.AllReduce(ctx, c, v, v, ubcoll.Sum)
}

func broadcast(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
	return coll.Broadcast(ctx, c, v, 1)
}

func barrier(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Vec) error { return coll.Barrier(ctx, c) }

func matches(t *testing.T, want []string, o ubcoll.OpInfo) {
	require.Len(t, o.Levels, len(want), "%+v", o.Levels)
	for i, l := range o.Levels {
		require.Regexp(t, regexp.MustCompile(want[i]), l.String())
	}
}
