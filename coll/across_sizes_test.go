package coll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// BenchmarkAcrossSizes compares neighbouring sizes, of a factor of 1.25, from 1 byte to 1 MiB, on 32 hosts: how much longer,
// at worst, an operation takes on a little more data. A step says that one way ends too late, or the next begins too
// early.
func BenchmarkAcrossSizes(b *testing.B) {
	for _, n := range []int{32, 64} {
		for _, op := range []string{"all_reduce", "broadcast"} {
			b.Run(fmt.Sprintf("%d hosts/%s", n, op), func(b *testing.B) {
				var sizes []int
				for s := 1.0; s <= 1<<20; s *= 1.25 {
					if size := int(s); len(sizes) == 0 || size > sizes[len(sizes)-1] {
						sizes = append(sizes, size)
					}
				}
				took := make([][]time.Duration, len(sizes))
				var mu sync.Mutex
				errs := onHosts(b, letters(n), func(c *ubcoll.Comm) error {
					src, dst := make([]int8, 1<<20), make([]int8, 1<<20)
					ctx := context.Background()
					for range max(b.N, 9) {
						for i, n := range sizes {
							for k := range n {
								src[k]++
							}
							err := coll.Barrier(ctx, c)
							start := time.Now()
							if op == "broadcast" {
								err = errors.Join(err, coll.Broadcast(ctx, c, ubcoll.Of(src[:n]), 0))
							} else {
								err = errors.Join(err, coll.AllReduce(ctx, c, ubcoll.Of(dst[:n]), ubcoll.Of(src[:n]), ubcoll.Sum))
							}
							if err != nil {
								return err
							}
							if c.Rank() == 0 {
								mu.Lock()
								took[i] = append(took[i], time.Since(start))
								mu.Unlock()
							}
						}
					}
					return nil
				})
				require.NoError(b, errors.Join(errs...))
				worst, at := 0.0, 0
				for i := range sizes {
					slices.Sort(took[i])
					if i == 0 {
						continue
					}
					if r := float64(took[i][len(took[i])/2]) / float64(took[i-1][len(took[i-1])/2]); r > worst {
						worst, at = r, i
					}
				}
				for i, s := range sizes {
					b.Logf("%d bytes: %v", s, took[i][len(took[i])/2])
				}
				b.ReportMetric(worst, "worst-step")
				b.ReportMetric(float64(sizes[at]), "bytes-there")
			})
		}
	}
}
