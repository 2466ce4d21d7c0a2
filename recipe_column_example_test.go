package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// pack copies what MPI_Type_vector(count, length, stride) describes in src: count blocks, whose beginnings are stride
// elements apart.
func pack[T any](dst, src []T, count, length, stride int) {
	for i := range count {
		copy(dst[i*length:(i+1)*length], src[i*stride:i*stride+length])
	}
}

// unpack copies them back: src has the blocks one after the other, and dst has them stride elements apart.
func unpack[T any](dst, src []T, count, length, stride int) {
	for i := range count {
		copy(dst[i*stride:i*stride+length], src[i*length:(i+1)*length])
	}
}

// MPI_Type_vector: each rank sends the last column of its matrix to the right, and receives what comes from the left
// into its first one.
func Example_column() {
	const rows, columns = 2, 4
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		left, right := (c.Rank()+2)%3, (c.Rank()+1)%3
		m := make([]float64, rows*columns) // row after row
		for i := range m {
			m[i] = float64(10*c.Rank() + i)
		}
		out, in := make([]float64, rows), make([]float64, rows)
		pack(out, m[columns-1:], rows, 1, columns)
		if _, err := p2p.SendRecv(ctx, c, left, ubcoll.Of(in), right, ubcoll.Of(out)); err != nil {
			return err
		}
		unpack(m, in, rows, 1, columns)
		if c.Rank() == 1 {
			fmt.Println(m[:columns], m[columns:])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [3 11 12 13] [7 15 16 17]
	// <nil>
}
