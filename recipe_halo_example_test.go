package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// A halo exchange on a ring: MPI_Send_init, MPI_Recv_init and MPI_Startall. Each rank has two cells, and room for a
// neighbour's cell before and behind them.
func Example_halo() {
	const n, steps = 2, 3
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		cells := []int32{-1, int32(10*c.Rank() + 1), int32(10*c.Rank() + 2), -1}
		halo := ubcoll.Of(cells)

		left, right := (c.Rank()-1+c.Size())%c.Size(), (c.Rank()+1)%c.Size()
		var x p2p.Exchange
		x.Recv(left, halo.Slice(0, 1)) // what its left neighbour sends to the right comes first:
		x.Recv(right, halo.Slice(n+1, n+2))
		x.Send(right, halo.Slice(n, n+1)) // of two ranks both neighbours are one, and order takes the place of tags
		x.Send(left, halo.Slice(1, 2))
		for range steps {
			if err := x.Do(ctx, c); err != nil {
				return err
			}
		}

		if c.Rank() == 0 {
			fmt.Println(cells)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [12 1 2 11]
	// <nil>
}

// MPI_Comm_split_type(MPI_COMM_TYPE_SHARED): a communicator of each host's ranks.
func Example_splitByHost() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		color := 0
		for c.Hostname(color) != c.Hostname(c.Rank()) {
			color++ // the first rank of this host
		}
		host, err := c.Split(ctx, color, c.Rank())
		if err != nil {
			return err
		}

		if c.Rank() == 2 {
			fmt.Println(host.Rank(), "of", host.Size())
		}
		return host.Close()
	})
	fmt.Println(err)
	// Output:
	// 2 of 3
	// <nil>
}
