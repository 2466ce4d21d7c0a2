// Command 02-registered reduces the same data twice, in Go slices and in registered buffers, and shows the difference.
//
//	NTHREADS=4 go run ./examples/02-registered
package main

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

const n = 1 << 18 // elements: 1 MiB of float32

func main() {
	ubcoll.Main(ubcoll.Options{
		// Without this the library chooses the algorithm by size, by number of ranks and by machine.
		Algorithm: ubcoll.AlgorithmTwoShot,
		// With this it registers nothing by itself. The default, RegisterAuto, registers memory of Alloc at its first use.
		Register: ubcoll.RegisterExplicit,
	}, run)
}

func run(ctx context.Context, c *ubcoll.Comm) error {
	// Other processes cannot reach the Go heap. The library copies a Go slice to memory that all ranks share, and the
	// result back from there: it stages the slice.
	slice := make([]float32, n)
	fill(slice, c.Rank())
	if err := coll.AllReduce(ctx, c, ubcoll.Of(slice), ubcoll.Of(slice), ubcoll.Sum); err != nil {
		return err
	}
	tell(c, "a Go slice")

	// A Buffer is memory off the Go heap that other ranks can map. Slice is a Go slice of that same memory.
	buf, err := ubcoll.Alloc[float32](c, ubcoll.Host, n)
	if err != nil {
		return err
	}
	fill(buf.Slice(), c.Rank())
	// It is registered once. Then every operation uses it in place: the other ranks read and write it without a copy.
	reg, err := buf.Register(c)
	if err != nil {
		return err
	}
	if err := coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Sum); err != nil {
		return err
	}
	tell(c, "a registered buffer")

	// Any part of a registered buffer is registered, too.
	half := buf.Vec().Slice(0, n/2)
	if err := coll.AllReduce(ctx, c, half, half, ubcoll.Max); err != nil { // all ranks have the same elements: none changes
		return err
	}
	tell(c, "half of that buffer")

	for i, want := range slice {
		if got := buf.Slice()[i]; got != want {
			return fmt.Errorf("element %d is %v in the buffer and %v in the slice", i, got, want)
		}
	}

	// Stats counts what the communicator and its registration cache have done. Two buffers were staged: the Go slice as
	// source, and as destination.
	if s := c.Stats(); c.Rank() == 0 {
		fmt.Printf("%d operations, %d buffers staged, %d registration, %d KiB registered\n",
			s.Operations, s.Staged, s.Cache.Registrations, s.Cache.RegisteredBytes>>10)
	}

	// Close the registration before freeing the memory: to free registered memory is an error. After an error, Main
	// closes the communicator, which does both.
	if err := reg.Close(); err != nil {
		return err
	}
	return buf.Free()
}

// fill gives each rank different numbers. They are small integers, so that their sum is exact in any order.
func fill(x []float32, rank int) {
	for i := range x {
		x[i] = float32(rank + i%10)
	}
}

// tell prints how the last operation ran on rank 0. LastOp().String() says the same in one line, with times.
func tell(c *ubcoll.Comm, what string) {
	if c.Rank() != 0 {
		return
	}
	last := c.LastOp()
	how := "the other ranks reached it directly"
	switch {
	case last.Dst.Alone:
		how = "there are no other ranks"
	case !last.Dst.Direct:
		how = "it was staged: " + last.Dst.Why
	}
	fmt.Printf("%s of %s: %s\n", last.Op, what, how)
}
