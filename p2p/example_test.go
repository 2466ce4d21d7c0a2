package p2p_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// Rank 0 sends three numbers to rank 1, which has room for more.
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

// Messages arrive in the order in which they were sent.
func ExampleRecv() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		for i := range 3 {
			x := []int32{int32(i)}
			if c.Rank() == 0 {
				if err := p2p.Send(ctx, c, 1, ubcoll.Of(x)); err != nil {
					return err
				}
				continue
			}
			if _, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x)); err != nil {
				return err
			}
			fmt.Println(x[0])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 0
	// 1
	// 2
	// <nil>
}

// A halo exchange on a ring: each rank has four cells, and on both sides room for a neighbour's cell, the left one's
// last and the right one's first.
func ExampleSendRecv() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		r, n := c.Rank(), c.Size()
		left, right := (r+n-1)%n, (r+1)%n
		cells := []int32{-1, int32(10*r + 1), int32(10*r + 2), int32(10*r + 3), int32(10*r + 4), -1}
		x := ubcoll.Of(cells)
		if _, err := p2p.SendRecv(ctx, c, left, x.Slice(0, 1), right, x.Slice(4, 5)); err != nil {
			return err
		}
		if _, err := p2p.SendRecv(ctx, c, right, x.Slice(5, 6), left, x.Slice(1, 2)); err != nil {
			return err
		}
		if r == 1 {
			fmt.Println(cells)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [4 11 12 13 14 21]
	// <nil>
}

// A persistent exchange; repeating it allocates nothing.
func ExampleExchange() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		// Each rank sends to both neighbours and receives from both, in one step.
		left, right := (c.Rank()+3)%4, (c.Rank()+1)%4
		mine, l, r := []int32{0}, make([]int32, 1), make([]int32, 1)
		var x p2p.Exchange
		x.Send(left, ubcoll.Of(mine))
		x.Send(right, ubcoll.Of(mine))
		x.Recv(left, ubcoll.Of(l))
		x.Recv(right, ubcoll.Of(r))
		for step := range int32(2) {
			mine[0] = 10*step + int32(c.Rank())
			if err := x.Do(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 {
				fmt.Println(l[0], r[0])
			}
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// 3 1
	// 13 11
}

// The message is on its way while the rank does something else. After Wait the rank may use its memory again.
func ExampleISend() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]float64, 3)
		if c.Rank() == 1 {
			_, err := p2p.Recv(ctx, c, 0, ubcoll.Of(x))
			fmt.Println(x)
			return err
		}
		r, err := p2p.ISend(ctx, c, 1, ubcoll.Of([]float64{1, 2, 3}))
		if err != nil {
			return err
		}
		return r.Wait(ctx)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [1 2 3]
}

// The receive is posted before the message comes.
func ExampleIRecv() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 1 {
			r, err := p2p.ISend(ctx, c, 0, ubcoll.Of([]int32{1, 2, 3}))
			if err != nil {
				return err
			}
			return r.Wait(ctx)
		}
		dst := make([]int32, 10)
		r, err := p2p.IRecv(ctx, c, 1, ubcoll.Of(dst))
		if err != nil {
			return err
		}
		// ... work that needs no dst ...
		if err := r.Wait(ctx); err != nil {
			return err
		}
		fmt.Println(dst[:r.Received()])
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [1 2 3]
}
