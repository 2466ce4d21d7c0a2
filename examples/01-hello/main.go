// Command 01-hello is the smallest program: its ranks add up one number each.
//
//	NTHREADS=4 go run ./examples/01-hello
package main

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// Main finds the ranks of the job, runs hello on each of them, and closes everything afterwards. The ranks are
// goroutines of this process (NTHREADS says how many), or one process each under `ubcoll launch` or mpirun. If hello
// fails on a rank, Main says so on standard error, ends the job on all ranks, and exits with a code that says why.
func main() { ubcoll.Main(ubcoll.Options{}, hello) }

// hello runs on every rank. The communicator c knows which rank this is (Rank, from 0) and how many there are (Size).
func hello(ctx context.Context, c *ubcoll.Comm) error {
	// Each rank has one number.
	mine := []int64{int64(c.Rank() + 1)}
	sum := make([]int64, 1)

	// AllReduce is a collective: every rank calls it, and every rank has the result when its call returns. Of makes a
	// Vec, a view of memory, of a Go slice. The destination comes before the source, as in copy.
	if err := coll.AllReduce(ctx, c, ubcoll.Of(sum), ubcoll.Of(mine), ubcoll.Sum); err != nil {
		return err
	}

	// The sum of 1 to n is known, so that each rank can check its result. An error on any rank ends the whole job.
	n := int64(c.Size())
	if want := n * (n + 1) / 2; sum[0] != want {
		return fmt.Errorf("the sum is %d, not %d", sum[0], want)
	}

	// Lines that several processes print come out in any order. So only one rank prints, and the other ranks' numbers
	// come to it by a collective: each rank fills one element, the others leave 0 there, and the sum has them all.
	all := make([]int64, c.Size())
	all[c.Rank()] = mine[0]
	if err := coll.AllReduce(ctx, c, ubcoll.Of(all), ubcoll.Of(all), ubcoll.Sum); err != nil { // in place
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("hello from %d ranks\n", c.Size())
		for rank, number := range all {
			fmt.Printf("rank %d has %d\n", rank, number)
		}
		fmt.Printf("the sum is %d on every rank\n", sum[0])
	}
	return nil
}
