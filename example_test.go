package ubcoll_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/p2p"
)

// Four goroutine ranks reduce in place, in a buffer that they register: each reads and writes the others' memory.
func Example() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		buf, err := ubcoll.Alloc[float32](c, ubcoll.Host, 1<<16)
		if err != nil {
			return err
		}
		reg, err := buf.Register(c)
		if err != nil {
			return err
		}
		x := buf.Slice()
		for i := range x {
			x[i] = float32(c.Rank())
		}
		if err := coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Sum); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(x[0], x[len(x)-1], "direct:", c.LastOp().Dst.Direct)
		}
		return errors.Join(reg.Close(), buf.Free())
	})
	fmt.Println(err)
	// Output:
	// 6 6 direct: true
	// <nil>
}

// Go slices work in every call, through staging memory.
func ExampleLocal() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := []int64{int64(c.Rank()), 1}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(x)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [3 3]
	// <nil>
}

// A program that must not end with the job: Run finds the ranks as Main does, and returns the error.
func ExampleRun() {
	err := ubcoll.Run(context.Background(), ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		return coll.Barrier(ctx, c)
	})
	fmt.Println(err, ubcoll.ExitCode(err))
	// Output: <nil> 0
}

// The calls of a group run in order, as one operation.
func ExampleGroup() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x, least := []float64{float64(c.Rank() + 1)}, make([]float64, 1)
		err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
			if err := coll.AllReduce(ctx, g, ubcoll.Of(least), ubcoll.Of(x), ubcoll.Min); err != nil {
				return err
			}
			return coll.AllReduce(ctx, g, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
		})
		if c.Rank() == 0 {
			fmt.Println(x, least)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [3] [1]
	// <nil>
}

// The messages of a group start together, so their order in the group cannot make ranks wait for each other.
func ExampleGroup_messages() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		left, right := (c.Rank()+2)%3, (c.Rank()+1)%3
		mine, theirs, sum := []int32{int32(c.Rank())}, make([]int32, 1), make([]int32, 1)
		err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
			if _, err := p2p.Recv(ctx, g, left, ubcoll.Of(theirs)); err != nil {
				return err
			}
			if err := p2p.Send(ctx, g, right, ubcoll.Of(mine)); err != nil {
				return err
			}
			return coll.AllReduce(ctx, g, ubcoll.Of(sum), ubcoll.Of(mine), ubcoll.Sum)
		})
		if c.Rank() == 0 {
			fmt.Println(theirs, sum)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// [2] [3]
	// <nil>
}

// Operations on a stream are queued: the call returns at once, and Sync waits and returns their errors.
func ExampleComm_On() {
	err := ubcoll.Local(context.Background(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		x := []uint8{3}
		if err := coll.AllReduce(ctx, c.On(s), ubcoll.Of(x), ubcoll.Of(x), ubcoll.Prod); err != nil {
			return err
		}
		if err := s.Sync(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(x)
		}
		return s.Close()
	})
	fmt.Println(err)
	// Output:
	// [9]
	// <nil>
}

// If a call differs on one rank, all ranks return an error that names that rank, and the communicator stays usable.
func ExampleError() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]float32, 5)
		if c.Rank() == 2 {
			x = x[:4]
		}
		err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
		var e *ubcoll.Error
		if c.Rank() == 0 && errors.As(err, &e) {
			fmt.Println(errors.Is(err, ubcoll.ErrMismatch), "rank", e.Peer, c.Err())
		}
		return coll.Barrier(ctx, c)
	})
	fmt.Println(err)
	// Output:
	// true rank 2 <nil>
	// <nil>
}
