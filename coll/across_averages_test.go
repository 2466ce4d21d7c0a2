package coll_test

import (
	"context"
	"fmt"
	"testing"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// TestAcrossAverages averages half types between hosts, as contributions, by recursive doubling, and by a ring. The sums
// are exact, so the averages must be those of one division.
func TestAcrossAverages(t *testing.T) {
	seed := uint64(testkit.Random(t).Uint32())
	for i, hosts := range []string{"abc", "abcd", "abcde", "aabcccd", "aaabbb"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			requireAll(t, onHosts(t, hosts, func(c *ubcoll.Comm) error {
				for i, n := range []int{7, 3000, 20_000, 150_001} {
					data := verify.Data{Type: dtype.Float16, Average: true, Ranks: c.Size(), Seed: seed + uint64(i)}
					if err := average[dtype.F16](c, data, n); err != nil {
						return err
					}
					data.Type = dtype.BFloat16
					if err := average[dtype.BF16](c, data, n); err != nil {
						return err
					}
				}
				return nil
			}))
		})
	}
}

func average[T dtype.Elem](c *ubcoll.Comm, data verify.Data, n int) error {
	x := make([]T, n)
	data.Fill(unsafe.Pointer(unsafe.SliceData(x)), n, c.Rank())
	if err := coll.AllReduce(context.Background(), c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Avg); err != nil {
		return err
	}
	if wrong, at := data.Check(unsafe.Pointer(unsafe.SliceData(x)), 0, n); wrong > 0 {
		return fmt.Errorf("rank %d: %d of %d %v wrong, the first: %v (%s)", c.Rank(), wrong, n, data.Type, at, c.LastOp().String())
	}
	return nil
}
