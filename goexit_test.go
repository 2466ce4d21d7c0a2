package ubcoll_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestGoexit ends a rank's function by Goexit, as testing.T.FailNow does: the others hear of it at once, and nothing
// stays open.
func TestGoexit(t *testing.T) {
	for name, start := range map[string]func(o ubcoll.Options, run func(context.Context, *ubcoll.Comm) error) error{
		"Local": func(o ubcoll.Options, run func(context.Context, *ubcoll.Comm) error) error {
			return ubcoll.Local(t.Context(), 2, o, run)
		},
		"Run": func(o ubcoll.Options, run func(context.Context, *ubcoll.Comm) error) error {
			return ubcoll.Run(t.Context(), o, run)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(env.Threads.Name, "2")
			defer testkit.NoLeaks(t)()
			var left *ubcoll.Comm
			told := make(chan error, 1)
			err := start(ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
				if c.Rank() == 0 {
					left = c
					runtime.Goexit()
				}
				told <- coll.Barrier(ctx, c)
				return nil
			})
			require.ErrorContains(t, err, "rank 0: the job's function called runtime.Goexit")
			require.ErrorIs(t, <-told, ubcoll.ErrAborted)
			require.ErrorIs(t, left.Close(), ubcoll.ErrClosed)
		})
	}
}
