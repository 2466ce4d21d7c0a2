package graph_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
)

// An all-reduce is recorded once. Each launch runs it with the current content of its buffer: 1, 2, 4, 8.
func ExampleCapture() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x, err := ubcoll.Alloc[float64](c, ubcoll.Host, 1)
		if err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, x.Vec(), x.Vec(), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		defer g.Close()
		x.Slice()[0] = 1
		for range 3 {
			if err := g.Launch(ctx); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			fmt.Println(x.Slice()[0])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 8
	// <nil>
}
