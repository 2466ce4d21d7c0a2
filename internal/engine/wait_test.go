package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Everything that ends the wait of a rank whose peers do not come.
func TestWaitEnds(t *testing.T) {
	cause := errors.New("the cause")
	for _, c := range []struct {
		name  string
		while func(waits, other *engine.Comm, cancel context.CancelCauseFunc)
		want  []error
		text  string
		peer  int
		then  error // the other rank's error, in calls after those on which both had agreed
	}{
		{"a peer's abort", func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.Abort(cause) },
			[]error{fault.ErrAborted}, "the cause", 1, fault.ErrAborted},
		{"its own abort", func(w, _ *engine.Comm, _ context.CancelCauseFunc) { w.Abort(cause) },
			[]error{fault.ErrAborted, cause}, "): the cause", 0, fault.ErrAborted},
		{"an abort without a cause", func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.Abort(nil) },
			[]error{fault.ErrAborted}, "no reason given", 1, fault.ErrAborted},
		{"a peer's close", func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.Close() },
			[]error{fault.ErrPeerLost}, "rank 1 closed its communicator", 1, fault.ErrClosed},
		{"time", func(w, _ *engine.Comm, _ context.CancelCauseFunc) { w.SetTimeout(time.Millisecond) },
			[]error{fault.ErrTimeout}, "nothing from rank 1 for 1ms", 1, fault.ErrTimeout},
		{"cancellation", func(_, _ *engine.Comm, cancel context.CancelCauseFunc) { cancel(nil) },
			[]error{context.Canceled}, "context canceled", 1, fault.ErrAborted},
		{"cancellation with a cause", func(_, _ *engine.Comm, cancel context.CancelCauseFunc) { cancel(cause) },
			[]error{context.Canceled, cause}, "context canceled: the cause", 1, fault.ErrAborted},
		{"damage", func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.ForgeLost(1<<32 | 99) },
			[]error{fault.ErrPeerLost}, "control area is damaged", 1, nil},
		{"damage that names nobody", func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.ForgeLost(9 << 32) },
			[]error{fault.ErrPeerLost}, "control area is damaged", 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{})
			requireUsable(t, comms)
			ctx, cancel := context.WithCancelCause(background)
			defer cancel(nil)
			done := make(chan error, 1)
			go func() { done <- enginetest.Run(ctx, comms[0], reduce(5)) }()
			enginetest.RequireWaiting(t, comms, 2, 1)
			require.ErrorIs(t, comms[0].Close(), fault.ErrBusy)
			require.ErrorIs(t, enginetest.Barrier(comms[0]), fault.ErrBusy)
			c.while(comms[0], comms[1], cancel)
			start := time.Now()
			err := <-done
			require.Less(t, time.Since(start), testkit.Limit)
			for _, want := range c.want {
				require.ErrorIs(t, err, want)
			}
			require.ErrorContains(t, err, c.text)
			var e *fault.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, []int{0, c.peer}, []int{e.Rank, e.Peer})
			require.Equal(t, err, comms[0].Err())
			require.Equal(t, err, enginetest.Barrier(comms[0]))
			if c.then != nil {
				_ = enginetest.Run(background, comms[1], reduce(5)) // the call that rank 0 had made
				require.ErrorIs(t, enginetest.Barrier(comms[1]), c.then)
			}
		})
	}
}

// All ranks learn of an abort, even those that wait for another rank than the one that aborts.
func TestAbortReachesAll(t *testing.T) {
	comms := enginetest.Open(t, 4, engine.Options{})
	result := without(comms, 2, enginetest.Barrier)
	enginetest.RequireWaiting(t, comms, 1, 2)
	start := time.Now()
	comms[2].Abort(errors.New("stop"))
	errs := <-result
	t.Logf("after %v", time.Since(start))
	errs[2] = comms[2].Err()
	for _, err := range errs {
		require.ErrorIs(t, err, fault.ErrAborted)
		require.ErrorContains(t, err, "stop: aborted")
	}
}

// reports makes all of n ranks but one wait for that one until they have reported it, and returns the reports.
func reports(t *testing.T, n, missing int) string {
	t.Helper()
	logger, out := testkit.Logs(slog.LevelWarn) // the reports, which are counted
	comms := enginetest.Open(t, n, engine.Options{Logger: logger})
	after := func(d time.Duration) {
		for _, c := range comms {
			c.Team().ReportAfter.Store(int64(d))
		}
	}
	after(time.Hour)
	result := without(comms, missing, enginetest.Barrier)
	enginetest.RequireWaiting(t, comms, 1, missing)
	after(0)
	testkit.Eventually(t, func() bool { return strings.Count(out.String(), "still waiting") >= len(comms)-1 })
	time.Sleep(100 * time.Millisecond) // time for surplus reports
	after(time.Hour)
	require.NoError(t, enginetest.Barrier(comms[missing]))
	require.NoError(t, errors.Join(<-result...))
	return out.String()
}

// A long wait is reported once, with who is missing.
func TestWaitIsReportedOnce(t *testing.T) {
	out := reports(t, 2, 1)
	require.Equal(t, 1, strings.Count(out, "\n"), out)
	require.Contains(t, out, `level=WARN msg="ubcoll: still waiting" op=barrier seq=1 rank=0`)
	require.Contains(t, out, "step=agree missing=1")
	require.Contains(t, out, `all="UBCOLL_TIMEOUT or Options.Timeout says how long to wait; rank 0 in barrier #1 for rank 1, rank 1 in no wait"`)
}
