// Command 05-window writes to other ranks' memory and reads it, without their help.
//
//	NTHREADS=4 go run ./examples/05-window
package main

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

const word = 8 // bytes of an int64: offsets into windows are bytes

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	rank, size := c.Rank(), c.Size()

	// A window is a part of memory on each rank, all of one size. All ranks make it together.
	buf, err := ubcoll.Alloc[int64](c, ubcoll.Host, size)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, buf.Vec(), ubcoll.WindowDefault)
	if err != nil {
		return err
	}

	// Each rank puts its square into its place in every rank's part. The other ranks do nothing for that. The source
	// may be any memory. When Put has returned, the program may change it.
	square := []int64{int64(rank * rank)}
	for peer := range size {
		if err := w.Put(ctx, peer, rank*word, ubcoll.Of(square)); err != nil {
			return err
		}
		// A rank that takes this signal sees everything that was put before it.
		if err := w.Signal(ctx, peer); err != nil {
			return err
		}
	}
	for peer := range size {
		if err := w.Wait(ctx, peer); err != nil {
			return err
		}
	}
	for i, got := range buf.Slice() {
		if got != int64(i*i) {
			return fmt.Errorf("element %d is %d, not %d", i, got, i*i)
		}
	}
	if rank == 0 {
		fmt.Println("rank 0's part after all puts:", buf.Slice())
	}

	// Get reads. Each rank changes its own place in its own part; after the barrier rank 0 looks at all of them.
	buf.Slice()[rank] = int64(100 + rank)
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if rank == 0 {
		got := make([]int64, size)
		for peer := range size {
			if err := w.Get(ctx, peer, ubcoll.Of(got[peer:peer+1]), peer*word); err != nil {
				return err
			}
		}
		fmt.Println("rank 0 gets from each rank:  ", got)
	}

	// A part that its rank has closed cannot be read any more. At the barrier all ranks wait until rank 0 has read
	// them.
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return buf.Free()
}
