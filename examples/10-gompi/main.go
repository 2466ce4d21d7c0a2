//go:build mpi && cgo

// Command 10-gompi is a program that runs MPI itself, through gompi, and uses ubcoll for its collectives. It needs MPI:
// there are no goroutine ranks here.
//
//	eval "$(ubcoll env)"; go build -tags mpi ./examples/10-gompi && $MPIRUN -n 4 ./10-gompi
//
// examples/mpiprog goes further: it has MPI messages under way while ubcoll works on some of its ranks.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	mpi "github.com/sbromberger/gompi"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
)

func main() {
	// Start(false) promises that one thread makes all MPI calls. Without this call, Go could move main to another
	// thread.
	runtime.LockOSThread()
	mpi.Start(false)
	world := mpi.NewCommunicator(nil) // MPI_COMM_WORLD
	if err := run(context.Background(), world); err != nil {
		// The program starts and ends MPI, so it also has to say what went wrong and to end the job. A rank that has
		// failed does not call Stop, which would wait for the others.
		fmt.Fprintf(os.Stderr, "10-gompi: rank %d: %v\n", world.Rank(), err)
		world.Abort(ubcoll.ExitCode(err))
	}
	mpi.Stop()
}

func run(ctx context.Context, world *mpi.Communicator) error {
	// The program's own MPI calls, before, between and after ubcoll's: rank 0 tells everybody a number.
	factor := []int64{0}
	if world.Rank() == 0 {
		factor[0] = 3
	}
	world.BcastInt64s(factor, 0)

	// ubcoll asks MPI for the ranks of this communicator, and to end the job if it must. It sends no messages on world,
	// and neither starts nor ends MPI.
	b, err := bootstrap.Gompi(world)
	if err != nil {
		return err
	}
	c, err := ubcoll.Open(ctx, b, ubcoll.Options{})
	if err != nil {
		return err
	}
	sum, err := multiply(ctx, c, factor[0])
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	// Open does not own the bootstrap, so this program closes it, after the communicator.
	if err := b.Close(); err != nil {
		return err
	}

	// MPI still works.
	world.Barrier()
	if world.Rank() == 0 {
		fmt.Printf("MPI broadcast %d, and ubcoll reduced on %d ranks: the sum is %d\n", factor[0], world.Size(), sum)
	}
	return nil
}

// multiply knows nothing of MPI: all that it needs is a communicator.
func multiply(ctx context.Context, c *ubcoll.Comm, factor int64) (int64, error) {
	const n = 10_000
	buf, err := ubcoll.Alloc[int64](c, ubcoll.Host, n)
	if err != nil {
		return 0, err
	}
	reg, err := buf.Register(c)
	if err != nil {
		return 0, err
	}
	x := buf.Slice()
	for i := range x {
		x[i] = factor * int64(c.Rank()+1)
	}
	if err := coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Sum); err != nil {
		return 0, err
	}
	sum, ranks := x[0], int64(c.Size())
	for i, got := range x {
		if want := factor * ranks * (ranks + 1) / 2; got != want {
			return 0, fmt.Errorf("element %d is %d, not %d", i, got, want)
		}
	}
	if err := reg.Close(); err != nil {
		return 0, err
	}
	return sum, buf.Free()
}
