package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// What ends the wait of a rank whose peers do not come.
func TestWaitEnds(t *testing.T) {
	cause := errors.New("the cause")
	for _, c := range []struct {
		name  string
		opts  engine.Options
		while func(waits, other *engine.Comm, cancel context.CancelCauseFunc)
		want  []error
		text  string
		peer  int
		then  error // what the other rank's calls say, once it is past what they had agreed on
	}{
		{"a peer's abort", engine.Options{}, func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.Abort(cause) },
			[]error{fault.ErrAborted}, "the cause", 1, fault.ErrAborted},
		{"its own abort", engine.Options{}, func(w, _ *engine.Comm, _ context.CancelCauseFunc) { w.Abort(cause) },
			[]error{fault.ErrAborted, cause}, "rank 0: the cause", 0, fault.ErrAborted},
		{"an abort without a cause", engine.Options{}, func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.Abort(nil) },
			[]error{fault.ErrAborted}, "no reason given", 1, fault.ErrAborted},
		{"a peer's close", engine.Options{}, func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.Close() },
			[]error{fault.ErrPeerLost}, "it closed its communicator", 1, fault.ErrClosed},
		{"time", engine.Options{Timeout: 2 * time.Second}, func(_, _ *engine.Comm, _ context.CancelCauseFunc) {},
			[]error{fault.ErrTimeout}, "nothing from it for 2s", 1, fault.ErrTimeout},
		{"cancellation", engine.Options{}, func(_, _ *engine.Comm, cancel context.CancelCauseFunc) { cancel(nil) },
			[]error{context.Canceled}, "context canceled", 1, fault.ErrAborted},
		{"cancellation with a cause", engine.Options{}, func(_, _ *engine.Comm, cancel context.CancelCauseFunc) { cancel(cause) },
			[]error{context.Canceled, cause}, "context canceled: the cause", 1, fault.ErrAborted},
		{"damage", engine.Options{}, func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.ForgeLost(1<<32 | 99) },
			[]error{fault.ErrPeerLost}, "control area is damaged", 1, nil},
		{"damage that names nobody", engine.Options{}, func(_, o *engine.Comm, _ context.CancelCauseFunc) { o.ForgeLost(9 << 32) },
			[]error{fault.ErrPeerLost}, "control area is damaged", 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			comms := open(t, 2, c.opts)
			requireUsable(t, comms)
			ctx, cancel := context.WithCancelCause(background)
			defer cancel(nil)
			done := make(chan error, 1)
			go func() { done <- run(ctx, comms[0], reduce(5)) }()
			select {
			case err := <-done:
				require.Fail(t, "it did not wait", "%v", err)
			case <-time.After(30 * time.Millisecond):
			}
			require.ErrorIs(t, comms[0].Close(), fault.ErrBusy)
			require.ErrorIs(t, barrier(comms[0]), fault.ErrBusy)
			c.while(comms[0], comms[1], cancel)
			start := time.Now()
			err := <-done
			require.Less(t, time.Since(start), c.opts.Timeout+2*time.Second)
			for _, want := range c.want {
				require.ErrorIs(t, err, want)
			}
			require.ErrorContains(t, err, c.text)
			var e *fault.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, []int{0, c.peer}, []int{e.Rank, e.Peer})
			require.Equal(t, err, comms[0].Err())
			require.Equal(t, err, barrier(comms[0]))
			if c.then != nil {
				_ = run(background, comms[1], reduce(5)) // what rank 0 had come to before
				require.ErrorIs(t, barrier(comms[1]), c.then)
			}
		})
	}
}

// All ranks learn of an abort, those that wait for others than the one that aborts, too.
func TestAbortReachesAll(t *testing.T) {
	comms := open(t, 4, engine.Options{})
	var start time.Time
	errs := each(comms, func(c *engine.Comm) error {
		if c.Rank() == 2 {
			time.Sleep(20 * time.Millisecond)
			start = time.Now()
			c.Abort(errors.New("stop"))
			return c.Err()
		}
		return barrier(c)
	})
	require.Less(t, time.Since(start), 2*time.Second)
	for _, err := range errs {
		require.ErrorIs(t, err, fault.ErrAborted)
		require.ErrorContains(t, err, "rank 2: stop")
	}
}

// A long wait is reported once, with who is missing.
func TestWaitIsReportedOnce(t *testing.T) {
	defer engine.ReportAfter(50 * time.Millisecond)()
	var out bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(old)

	comms := open(t, 2, engine.Options{})
	requireUsable(t, comms)
	errs := each(comms, func(c *engine.Comm) error {
		if c.Rank() == 1 {
			time.Sleep(300 * time.Millisecond)
		}
		return barrier(c)
	})
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, 1, strings.Count(out.String(), "\n"), "%s", &out)
	require.Contains(t, out.String(), `level=WARN msg="ubcoll: still waiting" op=barrier seq=2 rank=0`)
	require.Contains(t, out.String(), "step=agree missing=1")
}
