package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/p2p"
)

// exscan is MPI_Exscan with MPI_SUM: dst becomes the sum of src of all lower ranks, and 0 on rank 0.
func exscan(ctx context.Context, c *ubcoll.Comm, dst, src []int64) error {
	all := make([]int64, c.Size()*len(src))
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(src)); err != nil {
		return err
	}
	clear(dst)
	for i, x := range all[:c.Rank()*len(src)] {
		dst[i%len(src)] += x
	}
	return nil
}

// exscanLong does the same in log2(Size) rounds, in which a rank receives no more than src's length.
func exscanLong(ctx context.Context, c *ubcoll.Comm, dst, src []int64) error {
	sum, from := append([]int64(nil), src...), make([]int64, len(src)) // sum is of this rank and the d-1 below
	clear(dst)
	for d := 1; d < c.Size(); d *= 2 {
		var x p2p.Exchange
		if to := c.Rank() + d; to < c.Size() {
			x.Send(to, ubcoll.Of(sum))
		}
		if c.Rank() >= d {
			x.Recv(c.Rank()-d, ubcoll.Of(from))
		}
		if err := x.Do(ctx, c); err != nil {
			return err
		}
		if c.Rank() < d {
			continue
		}
		for i := range from {
			dst[i] += from[i]
			sum[i] += from[i]
		}
	}
	return nil
}

// MPI_Exscan: where each rank's part begins in an array of all ranks.
func Example_exclusiveScan() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		lengths, begin, again := []int64{int64(10 + c.Rank())}, make([]int64, 1), make([]int64, 1)
		if err := exscan(ctx, c, begin, lengths); err != nil {
			return err
		}
		if err := exscanLong(ctx, c, again, lengths); err != nil {
			return err
		}
		if c.Rank() == 3 {
			fmt.Println(begin, again)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [33] [33]
	// <nil>
}
