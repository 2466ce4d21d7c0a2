package coll_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// Four ranks add two elements each. Every rank has the result.
func ExampleAllReduce() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		src, dst := []int32{1, int32(c.Rank())}, make([]int32, 2)
		err := coll.AllReduce(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum)
		if c.Rank() == 3 {
			fmt.Println(dst)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [4 6]
	// <nil>
}

// Each rank gets its slice of the sum.
func ExampleReduceScatter() {
	onRanks(2, 1, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		src, dst := []int32{1, 2, 3, 4}, make([]int32, 2)
		return dst, coll.ReduceScatter(ctx, c, ubcoll.Of(dst), ubcoll.Of(src), ubcoll.Sum)
	})
	// Output: rank 1: [6 8]
}

// The result is on the root alone; the others pass the zero Vec.
func ExampleReduce() {
	const root = 2
	onRanks(3, root, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		src := []int32{int32(c.Rank()), 5}
		var dst []int32
		var to ubcoll.Vec
		if c.Rank() == root {
			dst = make([]int32, 2)
			to = ubcoll.Of(dst)
		}
		return dst, coll.Reduce(ctx, c, to, ubcoll.Of(src), ubcoll.Max, root)
	})
	// Output: rank 2: [2 5]
}

// In place: the source is this rank's slice of the destination.
func ExampleAllGather() {
	onRanks(3, 0, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		r := c.Rank()
		x := make([]int32, 3)
		x[r] = int32(10 * r)
		all := ubcoll.Of(x)
		return x, coll.AllGather(ctx, c, all, all.Slice(r, r+1))
	})
	// Output: rank 0: [0 10 20]
}

// Rank r gives r+1 elements.
func ExampleAllGatherV() {
	onRanks(3, 0, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		src, dst := make([]int32, c.Rank()+1), make([]int32, 6)
		for i := range src {
			src[i] = int32(c.Rank())
		}
		return dst, coll.AllGatherV(ctx, c, ubcoll.Of(dst), []int{1, 2, 3}, ubcoll.Of(src))
	})
	// Output: rank 0: [0 1 1 2 2 2]
}

// Every rank receives the root's elements, in the same memory.
func ExampleBroadcast() {
	const root = 2
	onRanks(3, 0, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		x := make([]int32, 2)
		if c.Rank() == root {
			x[0], x[1] = 7, 8
		}
		return x, coll.Broadcast(ctx, c, ubcoll.Of(x), root)
	})
	// Output: rank 0: [7 8]
}

// The destination matters on the root alone; the others pass the zero Vec.
func ExampleGather() {
	const root = 0
	onRanks(3, root, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		src := []int32{int32(c.Rank())}
		var dst []int32
		var to ubcoll.Vec
		if c.Rank() == root {
			dst = make([]int32, c.Size())
			to = ubcoll.Of(dst)
		}
		return dst, coll.Gather(ctx, c, to, ubcoll.Of(src), root)
	})
	// Output: rank 0: [0 1 2]
}

// Rank r gives r elements. The counts, too, matter on the root alone.
func ExampleGatherV() {
	const root = 0
	onRanks(3, root, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		src := []int32{5, 6}[:c.Rank()]
		var dst []int32
		var to ubcoll.Vec
		var counts []int
		if c.Rank() == root {
			dst, counts = make([]int32, 3), []int{0, 1, 2}
			to = ubcoll.Of(dst)
		}
		return dst, coll.GatherV(ctx, c, to, counts, ubcoll.Of(src), root)
	})
	// Output: rank 0: [5 5 6]
}

// The source matters on the root alone; the others pass the zero Vec.
func ExampleScatter() {
	const root = 0
	onRanks(3, 2, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		dst := make([]int32, 2)
		var from ubcoll.Vec
		if c.Rank() == root {
			from = ubcoll.Of([]int32{1, 2, 3, 4, 5, 6})
		}
		return dst, coll.Scatter(ctx, c, ubcoll.Of(dst), from, root)
	})
	// Output: rank 2: [5 6]
}

// Rank r gets r elements. The counts, too, matter on the root alone.
func ExampleScatterV() {
	const root = 0
	onRanks(3, 2, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		dst := make([]int32, c.Rank())
		var from ubcoll.Vec
		var counts []int
		if c.Rank() == root {
			from, counts = ubcoll.Of([]int32{7, 8, 9}), []int{0, 1, 2}
		}
		return dst, coll.ScatterV(ctx, c, ubcoll.Of(dst), from, counts, root)
	})
	// Output: rank 2: [8 9]
}

// Slice d of rank s goes to slice s of rank d.
func ExampleAllToAll() {
	onRanks(2, 1, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		r := int32(10 * c.Rank())
		src, dst := []int32{r, r + 1}, make([]int32, 2)
		return dst, coll.AllToAll(ctx, c, ubcoll.Of(dst), ubcoll.Of(src))
	})
	// Output: rank 1: [1 11]
}

// Rank r sends r+1 elements to every rank.
func ExampleAllToAllV() {
	onRanks(2, 0, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		mine := c.Rank() + 1
		src, dst := make([]int32, 2*mine), make([]int32, 3)
		for i := range src {
			src[i] = int32(mine)
		}
		return dst, coll.AllToAllV(ctx, c, ubcoll.Of(dst), []int{1, 2}, ubcoll.Of(src), []int{mine, mine})
	})
	// Output: rank 0: [1 2 2]
}

// When a Barrier returns, every rank has called it.
func ExampleBarrier() {
	var called atomic.Int32
	onRanks(3, 0, func(ctx context.Context, c *ubcoll.Comm) ([]int32, error) {
		called.Add(1)
		err := coll.Barrier(ctx, c)
		return []int32{called.Load()}, err
	})
	// Output: rank 0: [3]
}

// onRanks runs f on n goroutine ranks, and prints what it returns on one of them.
func onRanks(n, which int, f func(ctx context.Context, c *ubcoll.Comm) ([]int32, error)) {
	err := ubcoll.Local(context.Background(), n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		result, err := f(ctx, c)
		if err == nil && c.Rank() == which {
			fmt.Printf("rank %d: %v\n", which, result)
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
}
