package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestGroupsBits reduces numbers whose sum depends on the order. All ranks get the same bits: those of combining in
// rank order within the groups, and then the groups in order. It tries sizes that fit the descriptor's line and larger
// ones.
func TestGroupsBits(t *testing.T) {
	const ranks, root = 20, 7
	groups := [][]int{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11, 12}, {13, 14, 15, 16, 17, 18, 19}}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	source := func(rank, n int) []float32 {
		random := rand.New(rand.NewPCG(seed, uint64(rank*100000+n)))
		src := make([]float32, n)
		for i := range src {
			src[i] = float32(math.Exp(20*random.Float64()-10)) * float32(1-2*random.IntN(2))
		}
		return src
	}
	want := func(op ubcoll.Op, i, n int) float32 {
		var total float32
		for g, members := range groups {
			var part float32
			for k, r := range members {
				x := source(r, n)[i]
				if strings.HasPrefix(op.String(), "premulsum") {
					x *= float32(r + 1)
				}
				if k == 0 {
					part = x
				} else {
					part += x
				}
			}
			if g == 0 {
				total = part
			} else {
				total += part
			}
		}
		if op == ubcoll.Avg {
			total /= ranks
		}
		return total
	}
	err := ubcoll.Local(t.Context(), ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for _, n := range testkit.Sample(3, []int{1, 3, 12, 13, 100, 512}) {
			for _, op := range []ubcoll.Op{ubcoll.Sum, ubcoll.Avg, ubcoll.PreMulSum(float64(c.Rank() + 1))} {
				src, dst := source(c.Rank(), n), make([]float32, n)
				check := func(what string) error {
					if got := c.LastOp().Algorithm; got != "groups" {
						return fmt.Errorf("%s of %d went by %s", what, n, got)
					}
					for _, i := range []int{0, n / 2, n - 1} {
						if w := want(op, i, n); math.Float32bits(dst[i]) != math.Float32bits(w) {
							return fmt.Errorf("%s %v of %d: element %d is %v, not %v", what, op, n, i, dst[i], w)
						}
					}
					return nil
				}
				if err := coll.AllReduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), op); err != nil {
					return err
				}
				if err := check("all-reduce"); err != nil {
					return err
				}
				clear(dst)
				if err := coll.Reduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), op, root); err != nil {
					return err
				}
				if c.Rank() != root {
					if dst[0] != 0 {
						return fmt.Errorf("rank %d has a result", c.Rank())
					}
					continue
				}
				if err := check("reduce"); err != nil {
					return err
				}
			}
		}
		return nil
	})
	require.NoError(t, err)
}

// TestGroupsChosen checks which operations go by groups.
func TestGroupsChosen(t *testing.T) {
	for _, k := range testkit.Sample(10, []struct {
		name, algorithm string
		ranks, limit    int
		call            func(ctx context.Context, c *ubcoll.Comm) error
		want            string
	}{
		{"few ranks", "", 16, 2048, sum[float32](1), "eager"},
		{"smallest", "", 17, 0, sum[float32](12), "groups"},
		{"nothing", "", 17, 2048, sum[float32](0), "groups"},
		{"not by table", "", 17, 0, sum[float32](13), "eager"},
		{"largest by table", "", 17, 2048, sum[float32](512), "groups"},
		{"beyond the table", "", 17, 2048, sum[float32](513), "two-shot"},
		{"largest of all", "", 17, 1 << 30, sum[float64](1024), "groups"},
		{"beyond all", "", 17, 1 << 30, sum[float64](1025), "two-shot"},
		{"half type", "", 17, 2048, sum[dtype.F16](1), "eager"},
		{"other half type", "", 17, 2048, sum[dtype.BF16](512), "two-shot"},
		{"16-bit integers", "", 17, 2048, sum[int16](512), "groups"},
		{"by name", "two-shot", 17, 2048, sum[float32](512), "two-shot"},
		{"small, by name", "two-shot", 17, 2048, sum[float32](12), "groups"},
		{"the ring", "ring", 17, 2048, sum[float32](12), "ring"},
		{"barrier", "", 17, 2048, coll.Barrier, "descriptors"},
		{"broadcast", "", 17, 2048, func(ctx context.Context, c *ubcoll.Comm) error {
			return coll.Broadcast(ctx, c, ubcoll.Of(make([]int32, 4)), 3)
		}, "eager"},
	}) {
		t.Run(k.name, func(t *testing.T) {
			var mu sync.Mutex
			var went []string
			err := ubcoll.Local(t.Context(), k.ranks, ubcoll.Options{Algorithm: ubcoll.Algorithm(k.algorithm)},
				func(ctx context.Context, c *ubcoll.Comm) error {
					table := *(*inside.Comm)(c).View().Team().Tuning()
					table.CombineUpTo = k.limit
					(*inside.Comm)(c).View().Team().Tune(table)
					if err := k.call(ctx, c); err != nil {
						return err
					}
					mu.Lock()
					defer mu.Unlock()
					went = append(went, c.LastOp().Algorithm)
					return nil
				})
			require.NoError(t, err)
			require.Equal(t, slices.Repeat([]string{k.want}, k.ranks), went)
		})
	}
}

func sum[T dtype.Elem](n int) func(context.Context, *ubcoll.Comm) error {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]T, n)
		return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
	}
}

// TestGroupsMismatch makes one rank of a large job call something else, once in every role that a rank has; the next
// call works.
func TestGroupsMismatch(t *testing.T) {
	const ranks = 20
	err := ubcoll.Local(t.Context(), ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for _, odd := range testkit.Sample(3, []int{0, 1, 6, 9, 13, ranks - 1}) {
			n := 3
			if c.Rank() == odd {
				n = 4
			}
			err := sum[float32](n)(ctx, c)
			var e *ubcoll.Error
			if !errors.As(err, &e) || e.Peer != odd {
				return fmt.Errorf("rank %d called something else: %w", odd, err)
			}
			root := 0
			if c.Rank() == odd {
				root = ranks
			}
			x := []int32{1}
			if err = coll.Reduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum, root); err == nil {
				return fmt.Errorf("rank %d gave no root, and nobody noticed", odd)
			}
			if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil || x[0] != ranks {
				return fmt.Errorf("after it: %d, %w", x[0], err)
			}
		}
		return nil
	})
	require.NoError(t, err)
}
