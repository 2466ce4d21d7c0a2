package coll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestSmoke(t *testing.T) {
	counts := []int{0, 1, 3, 1000, 100000, 1 << 20}
	if race.Enabled || testing.Short() {
		counts[5] = 1 << 18
	}
	for _, n := range testkit.Sample(5, []int{3, 1, 2, 4, 8}) {
		for _, count := range testkit.Sample(2, counts) {
			for _, reg := range []bool{true, false} {
				t.Run(fmt.Sprintf("ranks=%d/count=%d/reg=%v", n, count, reg), func(t *testing.T) {
					err := ubcoll.Local(context.Background(), n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
						src, dst := make([]float32, count), make([]float32, count)
						vs, vd := ubcoll.Of(src), ubcoll.Of(dst)
						if reg {
							a, err := ubcoll.Alloc[float32](c, ubcoll.Host, count)
							if err != nil {
								return err
							}
							b, err := ubcoll.Alloc[float32](c, ubcoll.Host, count)
							if err != nil {
								return err
							}
							src, dst, vs, vd = a.Slice(), b.Slice(), a.Vec(), b.Vec()
						}
						for k := 0; k < 3; k++ {
							for i := range src {
								src[i] = float32(c.Rank() + i%7 + k)
							}
							if err := coll.AllReduce(ctx, c, vd, vs, ubcoll.Sum); err != nil {
								return err
							}
							for i := range dst {
								want := float32(n*(n-1)/2 + n*(i%7+k))
								if dst[i] != want {
									return fmt.Errorf("rank %d element %d: %v, want %v", c.Rank(), i, dst[i], want)
								}
							}
						}
						if c.Rank() == 0 {
							t.Log(c.LastOp().String())
						}
						return nil
					})
					require.NoError(t, err)
				})
			}
		}
	}
}
