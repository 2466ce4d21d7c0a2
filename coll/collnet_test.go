package coll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

func TestCollNetFirst(t *testing.T) {
	switchtest.Use(t)
	for _, hosts := range []string{"ab", "aabb", "abcd", "aab"} {
		t.Run(hosts, func(t *testing.T) {
			errs := onHostsWith(t, hosts, inside.Providers.Network, engine.Options{Algorithm: "collnet"}, func(c *ubcoll.Comm) error {
				for turn := range 3 {
					for _, n := range []int{1 << 14, 1 << 16, 100_003, 1 << 20} {
						if err := checkAcross(c, n, turn); err != nil {
							return fmt.Errorf("%d: %w: %v", n, err, c.LastOp())
						}
					}
				}
				src, dst := make([]float32, 1<<18), make([]float32, 1<<18)
				if err := coll.AllReduce(context.Background(), c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum); err != nil {
					return err
				}
				t.Log(c.LastOp())
				return nil
			})
			requireAll(t, errs)
			require.NotNil(t, errs)
		})
	}
}
