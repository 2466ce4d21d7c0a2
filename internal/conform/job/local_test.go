package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

// barrier is a collective with data that waits for all ranks.
func barrier(ctx context.Context, c *ubcoll.Comm, x ubcoll.Vec) error {
	return coll.AllReduce(ctx, c, x, x, ubcoll.Sum)
}

func local(t *testing.T, n int, o ubcoll.Options, run ...string) {
	t.Helper()
	t.Logf("TEST_SEED=%d", conform.Seed())
	defer testkit.NoLeaks(t)()
	for _, name := range testkit.Turns(t, 2, run) {
		start := time.Now()
		require.NoError(t, ubcoll.Local(t.Context(), n, o, suites[name]), name)
		t.Logf("%s: %v", name, time.Since(start).Round(time.Millisecond))
	}
}

// divided returns numbers of ranks: these, and in full runs the rest, too. Goroutine ranks, processes and the ranks of each MPI
// share the numbers out: they differ in how they start and get at each other's memory, which does not depend on the number,
// and run the same code after that.
func divided(these []int, rest ...int) []int {
	if !testkit.Full() {
		return these
	}
	all := append(these, rest...)
	slices.Sort(all)
	return all
}

// TestLocal runs the suites as goroutine ranks. The race detector then checks that every hand-off is ordered.
func TestLocal(t *testing.T) {
	sizes := divided([]int{1, 3, 4}, 2, 8)
	suites := []string{"random", "matrix", "moves", "bad", "order", "imports", "p2p", "programs", "exit-early"}
	if race.Enabled || testing.Short() {
		sizes, suites = []int{3}, []string{"random", "moves", "bad", "order", "p2p", "programs", "exit-early"}
	}
	if testkit.Daily() {
		suites = []string{"random", "order", "p2p", "exit-early"}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) { local(t, n, ubcoll.Options{}, suites...) })
	}
}

// TestManyLocal runs suites with so many ranks that they agree by group: 17 is the fewest; 40 makes groups of unequal
// size.
func TestManyLocal(t *testing.T) {
	for _, k := range []struct {
		ranks  int
		long   bool
		suites []string
	}{
		{17, true, []string{"moves", "bad"}},
		{20, testkit.Daily(), []string{"order", "p2p", "exit-early"}},
		{24, true, []string{"random", "bad"}},
		{40, true, []string{"random", "order"}},
	} {
		if k.ranks == 24 && !testkit.Full() {
			continue // 17 ranks run one of its suites, and 40 the other
		}
		t.Run(fmt.Sprintf("ranks=%d", k.ranks), func(t *testing.T) {
			if k.long && (race.Enabled || testing.Short()) {
				t.Skip("takes long")
			}
			local(t, k.ranks, ubcoll.Options{}, k.suites...)
		})
	}
}

func TestPolicies(t *testing.T) {
	testkit.LongOrRace(t) // TestRandomPrograms has these, too
	for _, p := range []register.Policy{register.Auto, register.Explicit, register.Off} {
		t.Run(p.String(), func(t *testing.T) { local(t, 3, ubcoll.Options{Register: p}, "random", "order") })
	}
}

func TestChurnLocal(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the race detector's own memory grows")
	}
	local(t, 2, ubcoll.Options{}, "churn")
}

// TestCancel cancels one rank's context during a call: its error is the context's, and the others' errors name it.
func TestCancel(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs, ended := make(chan error, 1), make(chan struct{})
	err := ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := ubcoll.Of([]int32{1})
		switch c.Rank() {
		case 0:
			errs <- barrier(cancelled, c, x)
		case 1: // never makes the call
			testkit.Until(func() bool { return (*inside.Comm)(c).View().WaitsIn(0) != "no wait" })
			cancel()
			<-ended // else rank 2 might find that this rank has closed
		case 2:
			defer close(ended)
			err := barrier(ctx, c, x)
			var e *ubcoll.Error
			if !errors.Is(err, ubcoll.ErrAborted) || !errors.As(err, &e) || e.Peer != 0 {
				return fmt.Errorf("the call that rank 0 gave up: %v, and no ErrAborted about rank 0", err)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, <-errs, context.Canceled)
}

// TestTimeout: one rank never comes. The rank that waits for it first runs out of time.
func TestTimeout(t *testing.T) {
	const limit = 300 * time.Millisecond
	gave := make(chan struct{}, 2) // ranks that have given up
	err := ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 1 {
			<-gave
			<-gave
			return nil
		}
		defer func() { gave <- struct{}{} }()
		if c.Rank() == 0 {
			(*inside.Comm)(c).View().SetTimeout(limit)
		}
		start := time.Now()
		err := barrier(ctx, c, ubcoll.Of([]int32{1}))
		took := time.Since(start)
		t.Logf("rank %d: after %v", c.Rank(), took)
		if c.Rank() == 0 && took < limit {
			return fmt.Errorf("timed out after %v", took)
		}
		return err
	})
	require.ErrorIs(t, err, ubcoll.ErrTimeout)
	var e *ubcoll.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Peer)
}

// TestPanic: if a rank panics, the job ends, and its error is the panic.
func TestPanic(t *testing.T) {
	err := ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		if c.Rank() == 2 {
			panic("on purpose")
		}
		return barrier(ctx, c, ubcoll.Of([]int32{1}))
	})
	require.ErrorContains(t, err, "panic: on purpose")
}

// TestOpenRegistrations ends a job with open registrations and buffers. They end with the last communicator; closing
// them afterwards is ErrClosed.
func TestOpenRegistrations(t *testing.T) {
	var kept []*ubcoll.Registration
	var buffer *ubcoll.Buffer[float32]
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(b.Vec())
		kept, buffer = append(kept, r), b
		return err
	}))
	require.ErrorIs(t, kept[0].Close(), ubcoll.ErrClosed)
	require.Nil(t, buffer.Slice())
	require.ErrorIs(t, buffer.CopyTo(t.Context(), make([]float32, 1)), ubcoll.ErrStale)
	require.ErrorIs(t, buffer.Free(), ubcoll.ErrClosed)
}
