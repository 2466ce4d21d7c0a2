package p2p_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

func ExampleSend() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 0 {
			return p2p.Send(ctx, c, 1, ubcoll.Of([]float64{1, 2, 3}))
		}
		x := make([]float64, 10)
		n, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x))
		if err == nil {
			fmt.Println(n, x[:n])
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: 3 [1 2 3]
}

func ExampleGroup() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		// Everybody sends to both neighbours and receives from both, in one step.
		left, right := (c.Rank()+3)%4, (c.Rank()+1)%4
		mine, l, r := []int32{int32(c.Rank())}, make([]int32, 1), make([]int32, 1)
		var g p2p.Group
		g.Send(left, ubcoll.Of(mine))
		g.Send(right, ubcoll.Of(mine))
		g.Recv(left, ubcoll.Of(l))
		g.Recv(right, ubcoll.Of(r))
		if err := g.Do(ctx, c); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(l[0], r[0])
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: 3 1
}
