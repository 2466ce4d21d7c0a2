package coll_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// bools all-reduces n bools, which are any bytes, with both operations, in place and not. It calls f to do it: f gets
// the places of the source and the destination in buf, and leaves the result there.
func bools(c *ubcoll.Comm, n int, f func(buf []byte, dst, src int, op ubcoll.Op) error) error {
	for i, op := range []ubcoll.Op{ubcoll.Max, ubcoll.Min} {
		d := verify.Data{Type: dtype.Bool, Op: []cpu.Op{cpu.Max, cpu.Min}[i], Ranks: c.Size(), Seed: uint64(n)}
		for _, dst := range []int{0, n + 5} {
			buf := make([]byte, dst+n)
			d.Fill(unsafe.Pointer(&buf[0]), n, c.Rank())
			if err := f(buf, dst, 0, op); err != nil {
				return err
			}
			if wrong, first := d.Check(unsafe.Pointer(&buf[dst]), 0, n); wrong > 0 {
				return fmt.Errorf("rank %d, %v of %d bools, destination at %d: %d wrong, %v (%s)", c.Rank(), op, n, dst, wrong,
					first, c.LastOp().String())
			}
		}
	}
	return nil
}

// onHost are the algorithms of one host.
var onHost = []ubcoll.Algorithm{ubcoll.AlgorithmRing, ubcoll.AlgorithmOneShot, ubcoll.AlgorithmTwoShot, ubcoll.AlgorithmPush,
	ubcoll.AlgorithmAuto}

// TestBools reduces bytes of any value to 0 and 1, by every algorithm.
func TestBools(t *testing.T) {
	for _, ranks := range testkit.Sample(4, []int{3, 1, 2, 20}) { // 20 agree by groups
		for _, algorithm := range testkit.Sample(2, onHost) {
			t.Run(fmt.Sprintf("%d ranks/%s", ranks, algorithm), func(t *testing.T) {
				o := ubcoll.Options{Algorithm: algorithm, Timeout: testkit.Limit}
				require.NoError(t, ubcoll.Local(t.Context(), ranks, o, func(ctx context.Context, c *ubcoll.Comm) error {
					for _, n := range []int{1, 17, 500, 3000, 70001} {
						if n > 3000 && ranks != 3 && (race.Enabled || testing.Short()) {
							break
						}
						err := bools(c, n, func(buf []byte, dst, src int, op ubcoll.Op) error {
							v := ubcoll.Of(buf).As(dtype.Bool)
							return coll.AllReduce(ctx, c, v.Slice(dst, dst+n), v.Slice(src, src+n), op)
						})
						if err != nil {
							return err
						}
						b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 2*n+5)
						if err != nil {
							return err
						}
						r, err := c.RegisterBuffer(b.Vec())
						if err != nil {
							return err
						}
						err = bools(c, n, func(buf []byte, dst, src int, op ubcoll.Op) error {
							copy(b.Slice(), buf)
							v := b.Vec().As(dtype.Bool)
							err := coll.AllReduce(ctx, c, v.Slice(dst, dst+n), v.Slice(src, src+n), op)
							copy(buf, b.Slice())
							return err
						})
						if err := errors.Join(err, r.Close(), b.Free()); err != nil {
							return err
						}
					}
					return nil
				}))
			})
		}
	}
}

func TestBoolsOnDevices(t *testing.T) {
	testkit.Long(t) // the detector sees the same Go code in TestDevices
	for _, ranks := range []int{1, 2, 3} {
		for _, algorithm := range onHost {
			t.Run(fmt.Sprintf("%d ranks/%s", ranks, algorithm), func(t *testing.T) {
				gputest.Run(t, ranks, ubcoll.Options{Algorithm: algorithm}, func(ctx context.Context, c *ubcoll.Comm,
					dev ubcoll.Device) error {
					for _, n := range []int{1, 17, 3000, 70001} {
						b, err := ubcoll.Alloc[byte](c, dev, 2*n+5)
						if err != nil {
							return err
						}
						err = bools(c, n, func(buf []byte, dst, src int, op ubcoll.Op) error {
							v := b.Vec().As(dtype.Bool)
							return testkit.InOrder(
								func() error { return b.CopyFrom(ctx, buf) },
								func() error { return coll.AllReduce(ctx, c, v.Slice(dst, dst+n), v.Slice(src, src+n), op) },
								func() error { return b.CopyTo(ctx, buf) })
						})
						if err := errors.Join(err, b.Free()); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// TestBoolsHaveNoSums asks for reductions that bools do not have, on all ranks and on one: all ranks return the error,
// and the communicator stays usable.
func TestBoolsHaveNoSums(t *testing.T) {
	const text = "no sum of bools, only max, which is or, and min, which is and"
	ops := map[ubcoll.Op]string{ubcoll.Sum: text, ubcoll.Prod: "no prod of bools", ubcoll.Avg: "no avg of bools",
		ubcoll.PreMulSum(1): "no premulsum of bools"}
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{Timeout: testkit.Limit},
		func(ctx context.Context, c *ubcoll.Comm) error {
			x := []bool{c.Rank() == 1, true}
			for _, one := range []bool{false, true} {
				for op, text := range ops {
					if one && c.Rank() != 1 {
						op, text = ubcoll.Max, "rank 1"
					}
					for _, call := range []func() error{
						func() error { return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), op) },
						func() error { return coll.Reduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), op, 0) },
						func() error {
							return coll.ReduceScatter(ctx, c, ubcoll.Of(make([]bool, 1)), ubcoll.Of(make([]bool, 3)), op)
						},
					} {
						err := call()
						if !errors.Is(err, ubcoll.ErrArgument) {
							return fmt.Errorf("rank %d, %v: %w", c.Rank(), op, err)
						}
						if !strings.Contains(err.Error(), text) {
							return fmt.Errorf("rank %d, %v: %q is not in: %w", c.Rank(), op, text, err)
						}
					}
				}
			}
			err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Min)
			if err != nil || x[0] || !x[1] {
				return fmt.Errorf("rank %d: %v, %w", c.Rank(), x, err)
			}
			return nil
		}))
}

// TestOwnTypes sums elements whose Go types differ between ranks but are the same element type.
func TestOwnTypes(t *testing.T) {
	type count int
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{Timeout: testkit.Limit},
		func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[count](c, ubcoll.Host, 1)
			if err != nil {
				return err
			}
			b.Slice()[0] = 1
			words, ints := []int64{10}, []int{100}
			v := []ubcoll.Vec{b.Vec(), ubcoll.Of(words), ubcoll.Of(ints)}[c.Rank()]
			if err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum); err != nil {
				return err
			}
			if got := []int{int(b.Slice()[0]), int(words[0]), ints[0]}[c.Rank()]; got != 111 {
				return fmt.Errorf("rank %d: %d", c.Rank(), got)
			}
			return b.Free()
		}))
}
