package coll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// BenchmarkCall is a small all-reduce: of one rank, what a call costs that waits for nobody, and of two.
func BenchmarkCall(b *testing.B) {
	for _, ranks := range []int{1, 2} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			b.ReportAllocs()
			require.NoError(b, ubcoll.Local(b.Context(), ranks, ubcoll.Options{Devices: ubcoll.DevicesOff}, func(ctx context.Context, c *ubcoll.Comm) error {
				x := []float32{1, 2}
				for range b.N {
					if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Max); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}

// BenchmarkGroup is the small all-reduce of BenchmarkCall in a group of one call, and of ten: what a group costs beside
// its calls.
func BenchmarkGroup(b *testing.B) {
	for _, ranks := range []int{1, 2} {
		for _, calls := range []int{1, 10} {
			b.Run(fmt.Sprintf("ranks=%d/calls=%d", ranks, calls), func(b *testing.B) {
				b.ReportAllocs()
				require.NoError(b, ubcoll.Local(b.Context(), ranks, ubcoll.Options{Devices: ubcoll.DevicesOff}, func(ctx context.Context, c *ubcoll.Comm) error {
					data := make([][2]float32, calls) // calls that share memory do not travel together
					for range b.N {
						if err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
							for i := range calls {
								x := data[i][:]
								if err := coll.AllReduce(ctx, g, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Max); err != nil {
									return err
								}
							}
							return nil
						}); err != nil {
							return err
						}
					}
					return nil
				}))
			})
		}
	}
}
