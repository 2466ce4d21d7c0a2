// Command 08-gpu reduces memory of GPUs, on a stream. Without GPUs it says why, and takes host memory: the calls are
// the same.
//
//	NTHREADS=4 go run ./examples/08-gpu
//	UBCOLL_CUDA=share NTHREADS=4 go run ./examples/08-gpu # also on one GPU, which the ranks share
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

const n = 1 << 20

func main() { ubcoll.Main(ubcoll.Options{}, run) }

func run(ctx context.Context, c *ubcoll.Comm) error {
	// A rank uses one GPU. Either all ranks of a host have one, or none has. By default each has one of its own; with
	// UBCOLL_CUDA=share, or Options.Devices DevicesShare, several may have the same.
	device, err := c.GPU()
	switch {
	case errors.Is(err, ubcoll.ErrNotSupported):
		device = ubcoll.Host
		if c.Rank() == 0 {
			fmt.Println("skips device memory, and takes the host's:", err)
		}
	case err != nil:
		return err
	case c.Rank() == 0:
		fmt.Println("each rank uses a GPU, rank 0", device)
	}

	// The program cannot read device memory through a Go slice (Slice is nil there). CopyFrom and CopyTo work everywhere.
	buf, err := ubcoll.Alloc[float32](c, device, n)
	if err != nil {
		return err
	}
	reg, err := buf.Register(c)
	if err != nil {
		return err
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(c.Rank() + i%10)
	}
	if err := buf.CopyFrom(ctx, x); err != nil {
		return err
	}

	// Operations on a stream are queued, and run in order. The calls return at once. Sync waits for the operations and
	// returns their errors. On a GPU it is a CUDA stream, and the operations are kernels.
	stream, err := ubcoll.NewStream(device)
	if err != nil {
		return err
	}
	queued := c.On(stream)
	if err := coll.AllReduce(ctx, queued, buf.Vec(), buf.Vec(), ubcoll.Sum); err != nil {
		return err
	}
	if err := coll.AllReduce(ctx, queued, buf.Vec(), buf.Vec(), ubcoll.Max); err != nil { // changes nothing
		return err
	}
	// ... here the program may do something else, if it leaves the buffer alone ...
	if err := stream.Sync(ctx); err != nil {
		return err
	}

	if err := buf.CopyTo(ctx, x); err != nil {
		return err
	}
	ranks := c.Size()
	for i, got := range x {
		if want := float32(ranks*(ranks-1)/2 + ranks*(i%10)); got != want {
			return fmt.Errorf("element %d is %v, not %v", i, got, want)
		}
	}
	if err := coll.Barrier(ctx, c); err != nil { // until all ranks have checked their result
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("%d ranks reduced %d elements twice on a stream\n", ranks, n)
	}

	if err := stream.Close(); err != nil {
		return err
	}
	if err := reg.Close(); err != nil {
		return err
	}
	return buf.Free()
}
