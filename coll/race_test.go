package coll_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
)

// TestMissingWaitIsCaught shows that the race detector would see a missing wait in the ring: the test runs itself with
// one wait removed, and expects the report.
func TestMissingWaitIsCaught(t *testing.T) {
	if !race.Enabled {
		t.Skip("needs the race detector")
	}
	if os.Getenv("COLL_TEST_NO_WAIT") != "" {
		coll.SkipWait()
		err := ubcoll.Local(context.Background(), 4, ubcoll.Options{Algorithm: "ring"}, func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 100000)
			if err != nil {
				return err
			}
			for k := 0; k < 5; k++ {
				if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestMissingWaitIsCaught$")
	cmd.Env = append(os.Environ(), "COLL_TEST_NO_WAIT=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s", out)
	require.Contains(t, string(out), "WARNING: DATA RACE")
	require.Contains(t, string(out), "runRing")
}
