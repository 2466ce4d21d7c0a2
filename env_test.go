package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A malformed variable on one rank is ErrArgument of that rank on all ranks, whichever variable it is.
func TestMalformedVariables(t *testing.T) {
	for _, v := range env.All() {
		if v.Kind == "text" || v.Name == env.IBDevices.Name || !strings.HasPrefix(v.Name, "UBCOLL_") {
			continue // any text is valid, or hw/verbs checks the list
		}
		t.Run(v.Name, func(t *testing.T) {
			t.Setenv(v.Name, "-?")
			err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(context.Context, *ubcoll.Comm) error { return nil })
			require.ErrorIs(t, err, ubcoll.ErrArgument)
			require.ErrorContains(t, err, v.Name+`="-?": `)
			require.ErrorContains(t, err, "want ", "what is allowed")
			var e *ubcoll.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "open", e.Op)
		})
	}
}

// Open takes the same algorithms from Options and from the environment.
func TestAlgorithmVariable(t *testing.T) {
	var names []string
	for _, a := range ubcoll.Algorithms() {
		names = append(names, string(a))
		t.Setenv(env.Algorithm.Name, string(a))
		got, err := env.Algorithm.Get()
		require.NoError(t, err)
		require.Equal(t, string(a), got)
	}
	require.Equal(t, strings.Join(names, "|"), env.Algorithm.Kind)
}

// logs returns the lines that rank 1 of logJob writes when UBCOLL_LOG is level; none for "error" and "warn".
func logs(level string) (lines []string) {
	const opened, closed, operation = `level=INFO msg="ubcoll: communicator opened" by=open rank=1 size=2 `,
		`level=INFO msg="ubcoll: communicator closed" rank=1 size=2 operations=1 bytes=400000 staged=2 `,
		`level=DEBUG msg="ubcoll: operation" rank=1 went="all_reduce #1: two-shot, 400000 bytes; source: staged: `
	return map[string][]string{"info": {opened, closed}, "debug": {opened, closed, operation}}[level]
}

func requireLogs(t *testing.T, level, out string) {
	t.Helper()
	require.Equal(t, 2*len(logs(level)), strings.Count(out, "\n"), "both ranks' lines, and no others: %s", out)
	for _, want := range logs(level) {
		require.Contains(t, out, want)
	}
}

// logJob is a job of two ranks.
func logJob(o ubcoll.Options) error {
	return ubcoll.Local(context.Background(), 2, o, func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]int32, 100_000)
		return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
	})
}

func childLog() error { return logJob(ubcoll.Options{}) }

// Without a Logger, UBCOLL_LOG decides what goes to standard error, whatever the program's own default logger is.
func TestLog(t *testing.T) {
	for _, level := range []string{"error", "warn", "info", "debug"} {
		t.Run(level, func(t *testing.T) {
			out, err := testkit.Child("log", env.Log.Name+"="+level, testkit.NoSleep).CombinedOutput()
			require.NoError(t, err)
			requireLogs(t, level, string(out))
		})
	}
}

// With a Logger, its handler decides.
func TestLogger(t *testing.T) {
	for name, level := range map[string]slog.Level{"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo,
		"debug": slog.LevelDebug} {
		t.Run(name, func(t *testing.T) {
			for _, other := range []string{"error", "debug"} {
				t.Setenv(env.Log.Name, other)
				l, out := testkit.Logs(level)
				require.NoError(t, logJob(ubcoll.Options{Logger: l}))
				requireLogs(t, name, out.String())
			}
		})
	}
}

// Each rank logs to the Logger that it was given; so do communicators made from its own.
func TestLoggerOfRank(t *testing.T) {
	t.Setenv(env.Log.Name, "debug")
	var out [2]*testkit.Log
	errs := testkit.Each(bootstrap.Local(2), func(b bootstrap.Bootstrap) error {
		o := ubcoll.Options{}
		o.Logger, out[b.Rank()] = testkit.Logs(slog.LevelDebug)
		c, err := ubcoll.Open(t.Context(), b, o)
		if err != nil {
			return err
		}
		d, err := c.Split(t.Context(), 0, -b.Rank())
		if err != nil {
			return err
		}
		x := []int32{1}
		return errors.Join(coll.AllReduce(t.Context(), d, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum), c.Close(), d.Close())
	})
	require.NoError(t, errors.Join(errs...))
	for r, l := range out {
		require.Equal(t, 4, strings.Count(l.String(), fmt.Sprintf(" rank=%d size=2 ", r))+
			strings.Count(l.String(), fmt.Sprintf(" rank=%d size=2 ", 1-r)), "opened and closed, twice: %s", l)
		require.Contains(t, l.String(), fmt.Sprintf("by=split rank=%d", 1-r))
		require.Contains(t, l.String(), fmt.Sprintf(`rank=%d went="all_reduce #1: `, 1-r))
	}
}
