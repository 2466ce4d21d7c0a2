package ubcoll_test

import (
	"context"
	"fmt"
	"math"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// floatInt is MPI_FLOAT_INT: a value, and where it is.
type floatInt struct {
	Value float32
	Index uint32
}

// key grows with the value and, where values are equal, as the index falls.
func (x floatInt) key() uint64 {
	bits := math.Float32bits(x.Value + 0) // -0 becomes 0, which it equals
	if bits>>31 == 0 {
		bits |= 1 << 31 // positive: above all that are negative
	} else {
		bits = ^bits // negative: the larger its magnitude, the smaller
	}
	return uint64(bits)<<32 | uint64(^x.Index)
}

func fromKey(key uint64) floatInt {
	bits := uint32(key >> 32)
	if bits>>31 == 1 {
		bits &^= 1 << 31
	} else {
		bits = ^bits
	}
	return floatInt{math.Float32frombits(bits), ^uint32(key)}
}

// maxLoc is MPI_Allreduce with MPI_MAXLOC, in place.
func maxLoc(ctx context.Context, c *ubcoll.Comm, x []floatInt) error {
	keys := make([]uint64, len(x))
	for i := range x {
		keys[i] = x[i].key()
	}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(keys), ubcoll.Of(keys), ubcoll.Max); err != nil {
		return err
	}
	for i := range x {
		x[i] = fromKey(keys[i])
	}
	return nil
}

// MPI_MAXLOC: the largest value, and the rank that has it.
func Example_maxLoc() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		r := uint32(c.Rank())
		x := []floatInt{{[]float32{-2, -0.5, -3, -1}[r], r}, {[]float32{1, 7, 7, 2}[r], r}}
		err := maxLoc(ctx, c, x)
		if r == 0 {
			fmt.Println(x)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [{-0.5 1} {7 1}]
	// <nil>
}
