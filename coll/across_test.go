package coll_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/enginetest"
)

// onHosts runs do on goroutine ranks, of which hosts says where each one is.
func onHosts(t *testing.T, hosts string, do func(c *ubcoll.Comm)) {
	t.Helper()
	bs := enginetest.Hosts(bootstrap.Local(len(hosts)), func(r int) string { return hosts[r : r+1] })
	var wg sync.WaitGroup
	for _, b := range bs {
		wg.Go(func() {
			defer b.Close()
			c, err := ubcoll.Open(context.Background(), b, ubcoll.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			do(c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestAcrossFirst(t *testing.T) {
	for _, hosts := range []string{"ab", "aabb", "abab", "aaab", "abc", "aabbc", "abcde"} {
		t.Run(hosts, func(t *testing.T) {
			onHosts(t, hosts, func(c *ubcoll.Comm) {
				ctx := context.Background()
				check := func(err error) bool {
					if err != nil {
						t.Error(err)
					}
					return err == nil
				}
				for i := range 10 {
					if !check(coll.Barrier(ctx, c)) {
						return
					}
					for _, n := range []int{0, 1, 5, 1000, 30000, 1 << 20, 3<<20 + 17} {
						src, dst := make([]float32, n), make([]float32, n)
						for k := range src {
							src[k] = float32((k+i)%100 + c.Rank())
						}
						if !check(coll.AllReduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum)) {
							return
						}
						size := c.Size()
						for k := range dst {
							if want := float32((k+i)%100*size + size*(size-1)/2); dst[k] != want {
								t.Errorf("rank %d: all-reduce of %d: [%d] = %v, not %v", c.Rank(), n, k, dst[k], want)
								return
							}
						}
						root := i % size
						if c.Rank() == root {
							copy(dst, src)
						}
						if !check(coll.Broadcast(ctx, c, ubcoll.Of(dst), root)) {
							return
						}
						for k := range dst {
							if want := float32((k+i)%100 + root); dst[k] != want {
								t.Errorf("rank %d: broadcast of %d from %d: [%d] = %v, not %v", c.Rank(), n, root, k, dst[k], want)
								return
							}
						}
					}
				}
			})
		})
	}
	_ = fmt.Sprint
	_ = require.True
}
