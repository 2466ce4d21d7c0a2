//go:build mpi && cgo

// Command mpiprog is a program that runs MPI itself, through gompi, and uses ubcoll on half of its ranks. It keeps a
// receive posted that any message would match, makes a sub-communicator of its even ranks, reduces there with ubcoll,
// goes on with its own messages, and finalizes MPI. ubcoll neither initializes nor finalizes MPI, and sends nothing on
// communicators that are not its own.
//
//	set -a; eval "$(../../scripts/mpienv)"; set +a
//	go build -tags mpi -o ../../bin/mpiprog . && $MPIRUN -n 4 ../../bin/mpiprog
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
	runtime.LockOSThread() // mpi.Start(false) is MPI_THREAD_SINGLE: one thread makes all MPI calls
	mpi.Start(false)
	world := mpi.NewCommunicator(nil)
	if err := program(world); err != nil {
		fmt.Fprintf(os.Stderr, "mpiprog: rank %d: %v\n", world.Rank(), err)
		world.Abort(1) // a failing rank must not finalize: its peers would wait for it forever
	}
	mpi.Stop()
}

func program(world *mpi.Communicator) error {
	rank, size := world.Rank(), world.Size()
	if err := postWildcard(); err != nil {
		return err
	}

	// All ranks call this to make the sub-communicator; only the even ones are in it.
	var even []int
	for r := 0; r < size; r += 2 {
		even = append(even, r)
	}
	sub := mpi.NewCommunicator(even)
	var c *ubcoll.Comm
	if rank%2 == 0 {
		b, err := bootstrap.Gompi(sub)
		if err != nil {
			return err
		}
		if c, err = ubcoll.Open(context.Background(), b, ubcoll.Options{}); err != nil {
			return err
		}
		if err := reduce(c); err != nil {
			return err
		}
		if taken, err := wildcardTaken(); err != nil || taken {
			return fmt.Errorf("the posted receive has taken a message that this program did not send (%v)", err)
		}
	}

	// The program's own messages: each rank sends to the next one, where the receive posted above takes the message. No
	// rank sends before all ranks have checked their receives.
	world.Barrier()
	world.SendInt32(int32(1000+rank), (rank+1)%size, 7)
	message, source, err := waitWildcard()
	if err != nil {
		return err
	}
	if left := (rank + size - 1) % size; source != left || message != 1000+left {
		return fmt.Errorf("got %d from rank %d, want %d from rank %d", message, source, 1000+left, left)
	}
	if c == nil {
		return nil
	}
	if err := reduce(c); err != nil { // MPI traffic between two calls does not disturb the communicator
		return err
	}
	return c.Close()
}

// reduce sums over the ranks of c in registered buffers, in the same steps as cmd/allreduce_ub.
func reduce(c *ubcoll.Comm) error {
	const n = 100_000
	ctx := context.Background()
	buf, err := ubcoll.Alloc[float64](c, ubcoll.Host, n)
	if err != nil {
		return err
	}
	reg, err := buf.Register(c)
	if err != nil {
		return err
	}
	x := buf.Slice()
	for i := range x {
		x[i] = float64(c.Rank() + i%10)
	}
	if err := coll.AllReduce(ctx, c, buf.Vec(), buf.Vec(), ubcoll.Sum); err != nil {
		return err
	}
	ranks := c.Size()
	for i, got := range x {
		if want := float64(ranks*(ranks-1)/2 + ranks*(i%10)); got != want {
			return fmt.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	if c.Rank() == 0 {
		fmt.Printf("mpiprog: %d ranks reduced %d elements correctly\n", ranks, n)
	}
	if err := reg.Close(); err != nil {
		return err
	}
	return buf.Free()
}
