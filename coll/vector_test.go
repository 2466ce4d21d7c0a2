package coll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestVectorsMixed mixes ranks whose sources travel with their counts with ranks whose sources do not. Each rank
// overwrites its source as soon as its call returns.
func TestVectorsMixed(t *testing.T) {
	const ranks, root, calls = 3, 1, 5
	for _, lens := range testkit.Sample(3, [][ranks]int{{0, 0, 0}, {1, 2, 3}, {341, 342, 340}, {1, 400, 50000}, {50000, 3, 7}, {9, 50000, 0}}) {
		for _, registered := range testkit.Sample(3, []int{2, 1, 0, 7}) { // a bit for each rank
			t.Run(fmt.Sprintf("lengths=%v/registered=%b", lens, registered), func(t *testing.T) {
				err := ubcoll.Local(t.Context(), ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
					me := c.Rank()
					hold := func(n int) (ubcoll.Vec, []int32, error) {
						if registered>>me&1 == 0 || n == 0 {
							s := make([]int32, n)
							return ubcoll.Of(s), s, nil
						}
						b, err := ubcoll.Alloc[int32](c, ubcoll.Host, n)
						if err != nil {
							return ubcoll.Vec{}, nil, err
						}
						return b.Vec(), b.Slice(), nil
					}
					// Each rank gets its length from each other rank; in operations with one destination, that gets all
					// of it.
					total := lens[0] + lens[1] + lens[2]
					same := []int{lens[me], lens[me], lens[me]}
					src, from, err := hold(ranks * lens[me])
					if err != nil {
						return err
					}
					dst, to, err := hold(total)
					if err != nil {
						return err
					}
					for k := range calls {
						for _, op := range []struct {
							name string
							part int // elements between two ranks' parts of a source
							call func() error
						}{
							{"all-to-all", 1, func() error { return coll.AllToAllV(ctx, c, dst, lens[:], src, same) }},
							{"all-gather", 0, func() error { return coll.AllGatherV(ctx, c, dst, lens[:], src.Slice(0, lens[me])) }},
							{"gather", 0, func() error { return coll.GatherV(ctx, c, dst, lens[:], src.Slice(0, lens[me]), root) }},
						} {
							value := func(s, i int) int32 { return int32(1000000*k + 300000*s + i + len(op.name)) }
							for i := range from {
								from[i] = value(me, i)
							}
							clear(to)
							if err := op.call(); err != nil {
								return fmt.Errorf("%s: %w", op.name, err)
							}
							for i := range from {
								from[i] = -1
							}
							if op.name == "gather" && me != root {
								continue
							}
							at := 0
							for s, n := range lens {
								for i := range n {
									if want := value(s, op.part*me*n+i); to[at] != want {
										return fmt.Errorf("%s: element %d of rank %d on rank %d is %d, not %d", op.name, i, s, me, to[at], want)
									}
									at++
								}
							}
						}
					}
					return nil
				})
				require.NoError(t, err)
			})
		}
	}
}
