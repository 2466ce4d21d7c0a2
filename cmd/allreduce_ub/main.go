// Command allreduce_ub is the main job: each rank allocates two buffers, registers them, reduces over all ranks,
// verifies every element, deregisters, frees and exits 0. It consists of library calls and printing.
//
//	mpirun -np 4 bin/allreduce_ub
//	NTHREADS=4 bin/allreduce_ub
//	bin/allreduce_ub -config configs/allreduce_ub.toml -type half -op max
//
// Without a launcher it runs NTHREADS goroutine ranks, 4 by default. Exit codes: 0 verified, 6 bad flags or config, 7
// wrong results; others are those of ubcoll.Main.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/experiment"
)

func main() {
	e, err := configure(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "%v\nallreduce_ub: -h lists the flags\n", err)
		os.Exit(exitUsage)
	}
	if err := experiment.SetNVLS(e.Options.NVLS); err != nil {
		fmt.Fprintf(os.Stderr, "allreduce_ub: nvls = %q: %v\n", e.Options.NVLS, err)
		os.Exit(ubcoll.ExitCode(err))
	}
	o := ubcoll.Options{Timeout: time.Duration(e.Options.Timeout), NetTimeout: time.Duration(e.Options.NetTimeout),
		Register: e.AllReduce.Registration, Algorithm: ubcoll.Algorithm(e.Options.Algorithm), Pin: e.Options.Pin, Net: ubcoll.Net(e.Options.Net),
		Devices: e.Options.Devices}
	if !env.Threads.IsSet() {
		os.Setenv(env.Threads.Name, strconv.Itoa(defaultRanks(e)))
	}
	var writer atomic.Bool // this process has rank 0
	ubcoll.Main(o, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 0 {
			writer.Store(true)
		}
		return run(ctx, c, e, os.Stdout, os.Stderr)
	})
	// Main returns after every rank has closed its communicator, so the line is true only here.
	if writer.Load() {
		if _, err := fmt.Println("All resources cleaned up successfully"); err != nil {
			os.Exit(1)
		}
	}
}

// defaultRanks is how many goroutine ranks run if the environment does not say.
func defaultRanks(e *experiment.Experiment) int {
	if e.Job.Ranks > 0 {
		return e.Job.Ranks
	}
	return 4
}

// Exit codes of this program's own.
const (
	exitUsage = 6
	exitWrong = 7
)

// exitError makes ubcoll.Main exit with a code of this program's own.
type exitError struct {
	error
	code int
}

// ExitCode implements ubcoll.Main's interface for errors with an exit code.
func (e exitError) ExitCode() int { return e.code }

// Unwrap returns the reason, for errors.Is and errors.As.
func (e exitError) Unwrap() error { return e.error }
