// Package conform is what suites of whole jobs have in common. A suite is what every rank of a job runs, whatever
// started it: goroutines of a test, processes with nothing but their environment, or mpirun. The folders below have the
// suites, each by what it is about; the program in the folder job runs them by name, and its tests start it in all these
// ways. The folder bootstraps has the suite of what connects the ranks, with a program of its own.
//
// Variables: TEST_SEED repeats a run. CONFORM_PROGRAMS, CONFORM_ROUNDS, CONFORM_TAKEBACKS, CONFORM_MISMATCHES and
// CONFORM_KILLS say how often something is done, CONFORM_STOPPED for how many seconds a host is stopped, CONFORM_FULL=1
// that devices are given as much as real ones can take. Scripts and tests that start jobs set the others:
// CONFORM_LAUNCH, CONFORM_PROGRAM and CONFORM_UBCOLL (the launcher and the programs to start), CONFORM_DIR (where ranks
// write what the test looks for), CONFORM_VICTIM (who is to be killed), CONFORM_RUN and CONFORM_AGAIN (that the job
// program calls Run and not Main, and twice), CONFORM_CALLER (that a test is the one to be killed, with its hosts).
package conform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Suite is what one rank does. All ranks run the same one.
type Suite func(ctx context.Context, c *ubcoll.Comm) error

// Seed is the seed of everything random, the same on all ranks. Logged with every failure by Fail.
func Seed() uint64 { return testkit.FixedSeed() }

// Number is how often something is done: what the variable says, or n.
func Number(variable string, n int) (int, error) {
	s := os.Getenv(variable)
	if s == "" {
		return n, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", variable, err)
	}
	return n, nil
}

// DirVar names the folder where ranks write what the test looks for.
const DirVar = "CONFORM_DIR"

// Dir is that folder.
func Dir() (string, error) {
	dir := os.Getenv(DirVar)
	if dir == "" {
		return "", fmt.Errorf("%s is not set: %w", DirVar, ubcoll.ErrArgument)
	}
	return dir, nil
}

// Each runs suites one after the other. Nobody begins one before all have ended the last.
func Each(ctx context.Context, c *ubcoll.Comm, suites ...Suite) error {
	for _, s := range suites {
		if err := s(ctx, c); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// Ring is who comes after this rank, and who before it, around all of them.
func Ring(c *ubcoll.Comm) (next, last int) {
	n := c.Size()
	return (c.Rank() + 1) % n, (c.Rank() + n - 1) % n
}

// Partner is who a rank has to itself, or -1.
func Partner(c *ubcoll.Comm) int {
	if p := c.Rank() ^ 1; p < c.Size() {
		return p
	}
	return -1
}

// Fail is an error that says which rank failed, and with which seed.
func Fail(c *ubcoll.Comm, format string, args ...any) error {
	return fmt.Errorf("rank %d of %d, seed %d: %w", c.Rank(), c.Size(), Seed(), fmt.Errorf(format, args...))
}

// Refused checks that err is the sentinel.
func Refused(c *ubcoll.Comm, what string, err, want error) error {
	var e *ubcoll.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		return Fail(c, "%s gave %v, not a *ubcoll.Error with %v", what, err, want)
	}
	return nil
}

// SumOf reduces each rank's own number in c and compares.
func SumOf(ctx context.Context, c *ubcoll.Comm, mine, want int64) error {
	x := []int64{mine}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
		return err
	}
	if x[0] != want {
		return Fail(c, "sum is %d, not %d", x[0], want)
	}
	return nil
}
