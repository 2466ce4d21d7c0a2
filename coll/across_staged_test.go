package coll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestAcrossStaged: where some ranks of a host have registered buffers and others Go slices, a buffer is its rank's again
// as soon as the call returns: it writes to it at once.
func TestAcrossStaged(t *testing.T) {
	for i, k := range []struct {
		name, hosts string
		registered  int // of so many ranks, one is
		n, turns    int
	}{
		{"every second rank", "aabb", 2, 150_000, 30},
		{"none registered", "aabb", 100, 150_000, 4},
		{"every second rank, one round", "aabbcc", 2, 20_000, 60},
		{"every third rank", "aaabbb", 3, 100_001, 30},
		{"hosts of different size", "aaabb", 2, 70_000, 30},
	} {
		t.Run(k.name, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			requireAll(t, onHosts(t, k.hosts, func(c *ubcoll.Comm) (err error) {
				src, dst, free, err := twoBuffers(c, k.n, c.Rank()%k.registered == 0, false)
				if err != nil {
					return err
				}
				for turn := range k.turns {
					if err := rewrite(c, src, dst, turn); err != nil {
						return fmt.Errorf("rank %d, turn %d: %w", c.Rank(), turn, err)
					}
				}
				return errors.Join(coll.Barrier(context.Background(), c), free())
			}))
		})
	}
}

// rewrite makes a sum, an average and a broadcast of data that were written just before.
func rewrite(c *ubcoll.Comm, src, dst []float32, turn int) error {
	ctx, size := context.Background(), c.Size()
	for i, red := range []ubcoll.Op{ubcoll.Sum, ubcoll.Avg} {
		for k := range src {
			src[k] = float32(size * ((k+turn+i)%50 + c.Rank()))
		}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), red); err != nil {
			return err
		}
		clear(src)
		for k := range dst {
			want := float32(size*((k+turn+i)%50) + size*(size-1)/2)
			if red == ubcoll.Sum {
				want *= float32(size)
			}
			if dst[k] != want {
				return fmt.Errorf("%v: [%d] = %v, not %v: %v", red, k, dst[k], want, c.LastOp().String())
			}
		}
	}
	root := turn % size
	for k := range dst {
		dst[k] = 0
		if c.Rank() == root {
			dst[k] = float32(k%100 + turn)
		}
	}
	if err := coll.Broadcast(ctx, c, ubcoll.Of(dst), root); err != nil {
		return err
	}
	if c.Rank() == root {
		clear(dst)
		return nil
	}
	for k := range dst {
		if want := float32(k%100 + turn); dst[k] != want {
			return fmt.Errorf("broadcast from %d: [%d] = %v, not %v: %v", root, k, dst[k], want, c.LastOp().String())
		}
	}
	return nil
}
