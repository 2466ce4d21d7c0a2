package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
)

// reduceBy is MPI_Allreduce, in place, with an operation of the program's own, which must be associative.
func reduceBy[T dtype.Elem](ctx context.Context, c *ubcoll.Comm, x []T, op func(a, b T) T) error {
	all := make([]T, c.Size()*len(x))
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(x)); err != nil {
		return err
	}
	fold(x, all, op)
	return nil
}

// reduceLongBy does the same to an x whose length is a multiple of Size: each rank combines one part of it for all.
func reduceLongBy[T dtype.Elem](ctx context.Context, c *ubcoll.Comm, x []T, op func(a, b T) T) error {
	all := make([]T, len(x)) // this rank's part, as each rank has it
	if err := coll.AllToAll(ctx, c, ubcoll.Of(all), ubcoll.Of(x)); err != nil {
		return err
	}
	n := len(x) / c.Size()
	mine := x[c.Rank()*n : (c.Rank()+1)*n]
	fold(mine, all, op)
	return coll.AllGather(ctx, c, ubcoll.Of(x), ubcoll.Of(mine)) // in place
}

// fold combines vectors of dst's length, one after the other.
func fold[T any](dst, vectors []T, op func(a, b T) T) {
	copy(dst, vectors)
	for i, x := range vectors[len(dst):] {
		dst[i%len(dst)] = op(dst[i%len(dst)], x)
	}
}

// MPI_BOR, MPI_BAND and MPI_BXOR of masks.
func Example_bitwise() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		or, xor := []uint64{1 << c.Rank()}, []uint64{1, 3, 5, uint64(c.Rank())}
		if err := reduceBy(ctx, c, or, func(a, b uint64) uint64 { return a | b }); err != nil {
			return err
		}
		if err := reduceLongBy(ctx, c, xor, func(a, b uint64) uint64 { return a ^ b }); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Printf("%04b %v\n", or, xor)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1111] [0 0 0 0]
	// <nil>
}
