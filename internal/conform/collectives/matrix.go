// Package collectives has the suites of collectives: every operation, type and length, right and wrong, in order.
package collectives

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// counts returns the counts of elements that the matrix uses: none, one, around the number of ranks, not divisible,
// around the chunks of the ring, several of its rounds.
func counts(n int) []int {
	return []int{0, 1, n - 1, n + 1, 17, 1000, 16384*n + 3, 70001}
}

// Matrix reduces every type with every operation, in and out of place, in all counts, from memory of a kind that
// differs between ranks. It checks every element, and that all ranks have the same bits.
func Matrix(ctx context.Context, c *ubcoll.Comm) error {
	for _, of := range []func(context.Context, *ubcoll.Comm) error{
		matrixOf[int8], matrixOf[uint8], matrixOf[int16], matrixOf[uint16], matrixOf[int32], matrixOf[uint32], matrixOf[int64],
		matrixOf[uint64], matrixOf[dtype.F16], matrixOf[dtype.BF16], matrixOf[float32], matrixOf[float64], matrixOf[int],
		matrixOf[uint], matrixOf[bool], matrixOf[celsius], matrixOf[answer],
	} {
		if err := of(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// Types that a program may define.
type (
	celsius float32
	answer  bool
)

var allOps = []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg}

func matrixOf[T dtype.Elem](ctx context.Context, c *ubcoll.Comm) error {
	pick := rand.New(rand.NewPCG(conform.Seed(), 1000+uint64(c.Rank()))) // differs between ranks
	for i, op := range allOps {
		if dtype.Of[T]() == dtype.Bool && op != ubcoll.Min && op != ubcoll.Max {
			continue
		}
		for j, n := range counts(c.Size()) {
			inPlace := (i+j)%2 == 1
			ws, wd := conform.Where(pick.IntN(int(conform.NumWhere))), conform.Where(pick.IntN(int(conform.NumWhere)))
			if err := one[T](ctx, c, op, n, inPlace, ws, wd, uint64(i*100+j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Random makes calls with random arguments, drawn from a seed that all ranks share.
func Random(ctx context.Context, c *ubcoll.Comm) error {
	all := rand.New(rand.NewPCG(conform.Seed(), 1))
	mine := rand.New(rand.NewPCG(conform.Seed(), 1000+uint64(c.Rank())))
	for k := 0; k < 60; k++ {
		op := allOps[all.IntN(len(allOps))]
		n := int(math.Exp(all.Float64() * 12.5)) // up to 268337
		inPlace := all.IntN(2) == 0
		ws, wd := conform.Where(mine.IntN(int(conform.NumWhere))), conform.Where(mine.IntN(int(conform.NumWhere)))
		var err error
		switch all.IntN(6) {
		case 0:
			err = one[float32](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 1:
			err = one[dtype.BF16](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 2:
			err = one[uint8](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 3:
			err = one[float64](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 4:
			err = one[int](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 5:
			err = one[answer](ctx, c, []ubcoll.Op{ubcoll.Min, ubcoll.Max}[k%2], n, inPlace, ws, wd, uint64(k))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one makes one all-reduce and checks it.
func one[T dtype.Elem](ctx context.Context, c *ubcoll.Comm, op ubcoll.Op, n int, inPlace bool, ws, wd conform.Where,
	salt uint64) error {
	src, err := conform.Hold[T](c, ws, n)
	if err != nil {
		return err
	}
	dst := src
	if !inPlace {
		if dst, err = conform.Hold[T](c, wd, n); err != nil {
			return err
		}
	}
	fill(dst.Slice, pattern(n, func(int) T { return encode[T](99) }))
	source := pattern(n, func(i int) T { return encode[T](value(op, c.Rank(), i, salt)) })
	fill(src.Slice, source)
	what := fmt.Sprintf("%v %v of %d, in place %v, source %v, destination %v", dtype.Of[T](), op, n, inPlace, ws, wd)
	if err := coll.AllReduce(ctx, c, dst.Vec, src.Vec, op); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	result := pattern(n, func(i int) T { return expect[T](op, c.Size(), i, salt) })
	if i := differs(dst.Slice, result); i >= 0 {
		return conform.Fail(c, "%s: element %d is %v, not %v (%s)", what, i, dst.Slice[i], result[i%period], c.LastOp().String())
	}
	if !inPlace {
		if i := differs(src.Slice, source); i >= 0 {
			return conform.Fail(c, "%s: source element %d was changed", what, i)
		}
		if err := dst.Free(); err != nil {
			return conform.Fail(c, "%s: free: %w", what, err)
		}
	}
	if err := src.Free(); err != nil {
		return conform.Fail(c, "%s: free: %w", what, err)
	}
	return nil
}
