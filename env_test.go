package ubcoll_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A variable that is malformed is this rank's wrong argument, whichever it is, on all ranks.
func TestMalformedVariables(t *testing.T) {
	for _, v := range env.All() {
		if v.Kind == "text" || !strings.HasPrefix(v.Name, "UBCOLL_") {
			continue
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

// logged runs a job and gives what is logged at a level.
func logged(t *testing.T, level string) string {
	t.Setenv(env.Log.Name, level)
	out := testkit.Logs(t)
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := make([]int32, 100_000)
		return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
	})
	require.NoError(t, err)
	return out.String()
}

func TestLog(t *testing.T) {
	const opened, closed, operation = `level=INFO msg="ubcoll: communicator opened" by=open rank=1 size=2 `,
		`level=INFO msg="ubcoll: communicator closed" rank=1 size=2 operations=1 bytes=400000 staged=2 `,
		`level=DEBUG msg="ubcoll: operation" rank=1 went="all_reduce #1: two-shot, 400000 bytes; source: staged: `
	for _, c := range []struct {
		level string
		lines []string
	}{
		{"error", nil},
		{"warn", nil},
		{"info", []string{opened, closed}},
		{"debug", []string{opened, closed, operation}},
	} {
		t.Run(c.level, func(t *testing.T) {
			out := logged(t, c.level)
			require.Equal(t, 2*len(c.lines), strings.Count(out, "\n"), "both ranks' lines, and no others: %s", out)
			for _, want := range c.lines {
				require.Contains(t, out, want)
			}
		})
	}
}
