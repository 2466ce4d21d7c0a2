package coll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// onRanks runs f on n goroutine ranks, and prints what rank 0's returns.
func onRanks(n int, f func(ctx context.Context, c *ubcoll.Comm) ([]int32, error)) {
	err := ubcoll.Local(context.Background(), n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		result, err := f(ctx, c)
		if err == nil && c.Rank() == 0 {
			fmt.Println(result)
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
}

func ExampleAllReduce() {
	onRanks(4, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		src, dst := []int32{1, int32(c.Rank())}, make([]int32, 2)
		err := coll.AllReduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum)
		return dst, err
	})
	// Output: [4 6]
}

// Each rank gets its slice of the sum.
func ExampleReduceScatter() {
	onRanks(2, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		x := ubcoll.Of([]int32{1, 2, 3, 4})
		dst := make([]int32, 2)
		err := coll.ReduceScatter(ctx, c, ubcoll.Of(dst), x, ubcoll.Sum)
		return dst, err
	})
	// Output: [2 4]
}

// In place: the source is this rank's slice of the destination.
func ExampleAllGather() {
	onRanks(3, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		r := c.Rank()
		x := make([]int32, 3)
		x[r] = int32(10 * r)
		all := ubcoll.Of(x)
		err := coll.AllGather(ctx, c, all, all.Slice(r, r+1))
		return x, err
	})
	// Output: [0 10 20]
}

func ExampleBroadcast() {
	onRanks(3, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		x := make([]int32, 2)
		if c.Rank() == 2 {
			x = []int32{7, 8}
		}
		err := coll.Broadcast(ctx, c, ubcoll.Of(x), 2)
		return x, err
	})
	// Output: [7 8]
}

// The destination matters on the root alone; the others pass the zero Vec.
func ExampleGather() {
	onRanks(3, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		var all []int32
		var dst ubcoll.Vec
		if c.Rank() == 0 {
			all = make([]int32, 3)
			dst = ubcoll.Of(all)
		}
		err := coll.Gather(ctx, c, dst, ubcoll.Of([]int32{int32(c.Rank())}), 0)
		return all, err
	})
	// Output: [0 1 2]
}

// Rank r sends r+1 elements to every rank.
func ExampleAllToAllV() {
	onRanks(2, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		mine := c.Rank() + 1
		src := make([]int32, 2*mine)
		for i := range src {
			src[i] = int32(mine)
		}
		dst := make([]int32, 3)
		err := coll.AllToAllV(ctx, c, ubcoll.Of(dst), []int{1, 2}, ubcoll.Of(src), []int{mine, mine})
		return dst, err
	})
	// Output: [1 2 2]
}
