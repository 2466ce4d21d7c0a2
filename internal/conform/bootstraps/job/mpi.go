//go:build mpi && cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	gompi "github.com/sbromberger/gompi"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/conform/bootstraps"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func init() {
	suites["mpi"] = runMPI
	suites["gompi"] = runGompi
	suites["launcher"] = runLauncher
}

// runMPI runs one case of the suite on MPI(). A case that breaks the job ends it as Main would, by Abort, with code 5
// if this rank saw what it should.
func runMPI(args []string) error {
	if len(args) != 1 || bootstraps.Cases[args[0]] == nil {
		return fmt.Errorf("want one case")
	}
	b, err := bootstrap.MPI()
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d\n", b.Rank(), b.Size())
	healthy := args[0] == "healthy"
	if healthy {
		if _, err := bootstrap.MPI(); !errors.Is(err, fault.ErrBusy) {
			return fmt.Errorf("a second MPI(): %v, want ErrBusy", err)
		}
		if err := signals(); err != nil {
			return err
		}
	}
	err = bootstraps.Cases[args[0]](b, bootstraps.Promises{Group: 1}, testkit.FixedSeed())
	if err == nil && healthy {
		if _, err = bootstrap.MPI(); errors.Is(err, fault.ErrClosed) {
			return nil
		}
		return fmt.Errorf("MPI() after close: %v, want ErrClosed", err)
	}
	code := 5
	if err != nil {
		fmt.Fprintf(os.Stderr, "conform mpi %s: %v\n", args[0], err)
		code = 1
	}
	if err == nil && (args[0] == "missing" || args[0] == "pair-missing" || args[0] == "circle") {
		time.Sleep(2 * time.Second) // every rank sees its part before one ends the job
	}
	b.Abort(code)
	return errors.New("the call of Abort returned")
}

// signals: a signal handler that MPI installed must not end a Go program, and Go's own faults must stay panics.
func signals() error {
	for range 20 {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	defer func() { _ = recover() }()
	var p *int
	*p = 1 // SIGSEGV, which Go turns into the panic recovered above
	return errors.New("writing to nil went well")
}

// runGompi is a program that runs MPI itself. It keeps a wildcard receive posted on the communicator that it lends, and
// lends the world and groups of up to 4 ranks.
func runGompi([]string) error {
	if _, err := bootstrap.Gompi(nil); !errors.Is(err, fault.ErrArgument) {
		return fmt.Errorf("Gompi(nil): %v, want ErrArgument", err)
	}
	runtime.LockOSThread()
	gompi.Start(true)
	if _, err := bootstrap.MPI(); !errors.Is(err, fault.ErrArgument) {
		return fmt.Errorf("MPI() in a program that runs MPI: %v, want ErrArgument", err)
	}
	world := gompi.NewCommunicator(nil)
	rank, size := world.Rank(), world.Size()
	fmt.Printf("rank %d of %d\n", rank, size)
	got := make(chan []byte)
	// One rank's receive is enough. In a world of one there is none: MPICH's threads wait by spinning under one lock,
	// and with a single rank never hand it over.
	if rank == 0 && size > 1 {
		go func() {
			runtime.LockOSThread()
			b := make([]byte, 64)
			world.RecvPreallocBytes(b, gompi.AnySource, gompi.AnyTag)
			got <- b
		}()
	}
	if err := lend(world, size); err != nil {
		world.Abort(1)
	}
	if err := signals(); err != nil { // by now Gompi has repaired MPICH's handler
		return err
	}
	for _, n := range []int{1, 2, 3, 4} {
		if n >= size {
			break
		}
		members := make([]int, n)
		for i := range members {
			members[i] = i
		}
		c := gompi.NewCommunicator(members) // collective over the world
		if rank >= n {
			continue
		}
		if err := lend(c, n); err != nil {
			world.Abort(1)
		}
	}
	world.Barrier()
	select {
	case <-got:
		return errors.New("the library's traffic matched the program's receive")
	default:
	}
	world.Barrier() // no rank sends before all have looked
	message := make([]byte, 64)
	copy(message, "from the program")
	if rank == size-1 && size > 1 {
		world.SendBytes(message, 0, 7)
	}
	if rank == 0 && size > 1 {
		if b := <-got; string(b) != string(message) {
			return fmt.Errorf("the program's receive got %q", b)
		}
	}
	world.Barrier()
	gompi.Stop()
	return nil
}

func lend(c *gompi.Communicator, size int) error {
	b, err := bootstrap.Gompi(c)
	if err == nil && b.Size() != size {
		err = fmt.Errorf("size %d, want %d", b.Size(), size)
	}
	switch {
	case err != nil:
	case size == gompi.WorldSize():
		err = bootstraps.Healthy(b, bootstraps.Promises{Group: 1, OneThread: true}, testkit.FixedSeed())
	default:
		err = bootstraps.Brief(b, testkit.FixedSeed())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conform gompi:", err)
	}
	return err
}

// runLauncher expects that the launcher belongs to another MPI.
func runLauncher([]string) error {
	_, err := bootstrap.MPI()
	if !errors.Is(err, bootstrap.ErrLauncher) || !errors.Is(err, fault.ErrMismatch) {
		return fmt.Errorf("%v, want ErrLauncher", err)
	}
	fmt.Println(err)
	os.Exit(5) // like a rank that failed: a launcher may complain about a process that ends without MPI_Finalize
	return nil
}
