// Command 07-graph finds the largest eigenvalue of a matrix by power iteration. The collectives of one step are recorded
// once, and launched in every step.
//
//	NTHREADS=4 go run ./examples/07-graph
package main

import (
	"context"
	"fmt"
	"math"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
)

const (
	n     = 16  // the matrix has n rows, with 2 on the diagonal and -1 beside it
	steps = 500 // each multiplies the vector by the matrix
)

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	// Each rank has the rows from `from` to `to`-1, and the whole vector.
	counts := make([]int, c.Size())
	for r := range counts {
		counts[r] = (r+1)*n/c.Size() - r*n/c.Size()
	}
	from, to := c.Rank()*n/c.Size(), (c.Rank()+1)*n/c.Size()

	// A graph holds the memory of its operations, which must be from Alloc: a Go slice cannot be recorded. The memory
	// need not be registered.
	vector, err := ubcoll.Alloc[float64](c, ubcoll.Host, n)
	if err != nil {
		return err
	}
	squares, err := ubcoll.Alloc[float64](c, ubcoll.Host, 1)
	if err != nil {
		return err
	}
	x, norm := vector.Slice(), squares.Slice()
	product := make([]float64, to-from)

	// Capture calls this function once on each rank. What it calls is recorded and checked, and does not run. All ranks
	// record the same operations.
	g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
		// In place: this rank's rows are its part of the vector.
		if err := coll.AllGatherV(ctx, c, vector.Vec(), counts, vector.Vec().Slice(from, to)); err != nil {
			return err
		}
		return coll.AllReduce(ctx, c, squares.Vec(), squares.Vec(), ubcoll.Sum)
	})
	if err != nil {
		return err
	}

	for i := range x {
		x[i] = 1 / float64(i+1)
	}
	for range steps {
		norm[0] = 0
		for i := range product {
			row := from + i
			product[i] = 2 * x[row]
			if row > 0 {
				product[i] -= x[row-1]
			}
			if row < n-1 {
				product[i] -= x[row+1]
			}
			norm[0] += product[i] * product[i]
		}
		copy(x[from:to], product)
		// Launch runs both collectives, with the present content of their memory.
		if err := g.Launch(ctx); err != nil {
			return err
		}
		length := math.Sqrt(norm[0])
		for i := range x {
			x[i] /= length
		}
	}

	// The eigenvalues of this matrix are known. Before the last product the vector had length 1, so the length of the
	// product is the largest eigenvalue.
	got, want := math.Sqrt(norm[0]), 2-2*math.Cos(n*math.Pi/(n+1))
	if !(math.Abs(got-want) <= 1e-9) { // NaN is wrong, too
		return fmt.Errorf("the largest eigenvalue is %v, not %v", got, want)
	}
	if c.Rank() == 0 {
		fmt.Printf("%d ranks, %d launches of %d operations\n", c.Size(), steps, g.Len())
		fmt.Printf("largest eigenvalue: %.6f\n", got)
	}

	// Close the graph first: memory that a graph holds cannot be freed.
	if err := g.Close(); err != nil {
		return err
	}
	if err := vector.Free(); err != nil {
		return err
	}
	return squares.Free()
}
