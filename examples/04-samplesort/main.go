// Command 04-samplesort sorts numbers that lie on many ranks: first on all ranks together, then two sets of numbers at
// the same time, each on one half of the ranks.
//
//	NTHREADS=4 go run ./examples/04-samplesort
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

const perRank = 10_000 // numbers that each rank has at the beginning

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	counts, err := sortRandom(ctx, c, 1)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("%d ranks sorted %d numbers, and have %v of them\n", c.Size(), sum(counts), counts)
	}

	// Split makes a communicator of the ranks that give the same color, in the order of their keys. It has ranks from 0
	// and operations of its own, so that sortRandom works on it as on the first one.
	color := 2 * c.Rank() / c.Size()
	half, err := c.Split(ctx, color, c.Rank())
	if err != nil {
		return err
	}
	if counts, err = sortRandom(ctx, half, uint64(2+color)); err != nil {
		return err
	}
	// Each rank adds what it has to its half's total.
	totals := make([]int, 2)
	totals[color] = counts[half.Rank()]
	if err := coll.AllReduce(ctx, c, ubcoll.Of(totals), ubcoll.Of(totals), ubcoll.Sum); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("its halves sorted %d and %d numbers at the same time\n", totals[0], totals[1])
	}
	return half.Close()
}

// sortRandom sorts random numbers on c's ranks, checks the result, and returns how many each rank has in the end.
func sortRandom(ctx context.Context, c *ubcoll.Comm, seed uint64) ([]int, error) {
	random := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
	keys := make([]int64, perRank)
	for i := range keys {
		keys[i] = random.Int64N(1_000_000)
	}
	sorted, err := sampleSort(ctx, c, keys)
	if err != nil {
		return nil, err
	}
	return check(ctx, c, keys, sorted)
}

// sampleSort sorts the keys of all ranks: the result on each rank is sorted, and none of it is greater than anything on
// the next rank.
func sampleSort(ctx context.Context, c *ubcoll.Comm, keys []int64) ([]int64, error) {
	n := c.Size()
	keys = slices.Sorted(slices.Values(keys))

	// 1. Each rank shows n of its keys, at equal distances, to all ranks. Of all these samples, n-1 at equal distances
	// are the borders between the ranks.
	sample, samples := make([]int64, n), make([]int64, n*n)
	for i := range sample {
		sample[i] = keys[i*len(keys)/n]
	}
	if err := coll.AllGather(ctx, c, ubcoll.Of(samples), ubcoll.Of(sample)); err != nil {
		return nil, err
	}
	slices.Sort(samples)

	// 2. How many keys go to each rank? Rank r takes the keys from border r-1 up to border r. The keys are sorted, so
	// they are in the right order for AllToAllV already.
	send, from := make([]int, n), 0
	for r := range n {
		to := len(keys)
		if r < n-1 {
			to, _ = slices.BinarySearch(keys, samples[(r+1)*n])
		}
		send[r] = to - from
		from = to
	}
	// Each rank tells each other rank how many to expect.
	receive := make([]int, n)
	if err := coll.AllToAll(ctx, c, ubcoll.Of(receive), ubcoll.Of(send)); err != nil {
		return nil, err
	}

	// 3. The keys move, and are sorted once more.
	sorted := make([]int64, sum(receive))
	if err := coll.AllToAllV(ctx, c, ubcoll.Of(sorted), receive, ubcoll.Of(keys), send); err != nil {
		return nil, err
	}
	slices.Sort(sorted)
	return sorted, nil
}

// check gathers all sorted numbers and all keys on rank 0, sorts the keys there, and compares. It returns how many
// sorted numbers each rank has.
func check(ctx context.Context, c *ubcoll.Comm, keys, sorted []int64) ([]int, error) {
	n := c.Size()
	counts := make([]int, n)
	if err := coll.AllGather(ctx, c, ubcoll.Of(counts), ubcoll.Of([]int{len(sorted)})); err != nil {
		return nil, err
	}
	var got, want []int64
	if c.Rank() == 0 { // on the other ranks they stay empty: only the root's destination is used
		got, want = make([]int64, sum(counts)), make([]int64, n*len(keys))
	}
	if err := coll.GatherV(ctx, c, ubcoll.Of(got), counts, ubcoll.Of(sorted), 0); err != nil {
		return nil, err
	}
	if err := coll.Gather(ctx, c, ubcoll.Of(want), ubcoll.Of(keys), 0); err != nil {
		return nil, err
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return nil, fmt.Errorf("%d sorted numbers are not the %d numbers that were to be sorted", len(got), len(want))
	}
	return counts, nil
}

func sum(counts []int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}
