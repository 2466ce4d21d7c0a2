// Package conform has what suites of whole jobs have in common. A suite is what every rank of a job runs, whatever
// started the job: goroutines of a test, processes with nothing but their environment, or mpirun. The folders below
// have the suites by subject. The program in the folder job runs them by name, and its tests start it in all these
// ways. The folder bootstraps has the suite for what connects the ranks, with a program of its own.
//
// Variables: TEST_SEED repeats a run. CONFORM_PROGRAMS, CONFORM_ROUNDS, CONFORM_TAKEBACKS, CONFORM_REVOCATIONS,
// CONFORM_ATOMICS, CONFORM_SUMS, CONFORM_MISMATCHES and CONFORM_KILLS say how often something is done, CONFORM_STOPPED for how many seconds a host is stopped. CONFORM_FULL=1
// gives devices as much as real ones can take. Scripts and tests that start jobs set the others: CONFORM_LAUNCH,
// CONFORM_PROGRAM and CONFORM_UBCOLL (the launcher and the programs to start), CONFORM_DIR (where ranks write what the
// test looks for), CONFORM_VICTIM (the rank to be killed), CONFORM_RUN and CONFORM_AGAIN (the job program calls Run
// instead of Main, and calls it twice), CONFORM_CALLER (a test is to be killed, together with its hosts).
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

// Suite is what one rank does. All ranks run the same suite.
type Suite func(ctx context.Context, c *ubcoll.Comm) error

// Seed is the seed of everything random, the same on all ranks. Fail puts it in every failure.
func Seed() uint64 { return testkit.FixedSeed() }

// Number returns how often something is done: the variable's value, or n if it is not set.
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

// Dir returns that folder.
func Dir() (string, error) {
	dir := os.Getenv(DirVar)
	if dir == "" {
		return "", fmt.Errorf("%s is not set: %w", DirVar, ubcoll.ErrArgument)
	}
	return dir, nil
}

// Each runs suites one after the other. No rank begins one before all have ended the one before.
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

// Ring returns the ranks after and before this one in a ring of all ranks.
func Ring(c *ubcoll.Comm) (next, last int) {
	n := c.Size()
	return (c.Rank() + 1) % n, (c.Rank() + n - 1) % n
}

// Partner returns the other rank of this rank's pair, or -1.
func Partner(c *ubcoll.Comm) int {
	if p := c.Rank() ^ 1; p < c.Size() {
		return p
	}
	return -1
}

// Far reports whether a rank is on another host than this one.
func Far(c *ubcoll.Comm, rank int) bool { return c.Hostname(rank) != c.Hostname(c.Rank()) }

// Fail returns an error that says which rank failed, and with which seed.
func Fail(c *ubcoll.Comm, format string, args ...any) error {
	return fmt.Errorf("rank %d of %d, seed %d: %w", c.Rank(), c.Size(), Seed(), fmt.Errorf(format, args...))
}

// Refused checks that err wraps the sentinel want.
func Refused(c *ubcoll.Comm, what string, err, want error) error {
	var e *ubcoll.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		return Fail(c, "%s gave %v, not a *ubcoll.Error with %v", what, err, want)
	}
	return nil
}

// SumOf all-reduces mine and compares the sum with want.
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
