package hosts

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/onesided"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/transporttest"
)

// often sets how often a suite does something: the variable's value, or testkit.Often(full).
func often(t *testing.T, variable string, full int) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Setenv(variable, strconv.Itoa(testkit.Often(full)))
	}
	t.Logf("%s=%s", variable, os.Getenv(variable))
}

// seeds runs f with each of the seeds of testkit.Seeds.
func seeds(t *testing.T, f func(t *testing.T)) {
	for _, seed := range testkit.Seeds(t) {
		t.Run("seed="+strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Setenv("TEST_SEED", strconv.FormatUint(seed, 10))
			f(t)
		})
	}
}

// TestRevocations takes memory back from ranks of this host and of another, 300 times in full runs.
func TestRevocations(t *testing.T) {
	often(t, "CONFORM_REVOCATIONS", 300)
	seeds(t, func(t *testing.T) {
		for _, l := range []conform.Layout{conform.Cyclic(1, 2), conform.Block(2, 1)} {
			run(t, l, named{"revocations", onesided.Revocations})
		}
	})
}

// TestRevocationsConnections is TestRevocations over several connections, which do not keep the order of writes.
func TestRevocationsConnections(t *testing.T) {
	testkit.LongOrRace(t)
	often(t, "CONFORM_REVOCATIONS", 300)
	file := filepath.Join(t.TempDir(), "tuning.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"version":2,"hosts":{"connections":3}}`), 0o600))
	t.Setenv(env.Tuning.Name, file)
	seeds(t, func(t *testing.T) {
		run(t, conform.Cyclic(2, 1), named{"revocations", onesided.Revocations})
	})
}

// TestRevocationsNetworks is TestRevocations over networks that do what TCP on this machine never does.
func TestRevocationsNetworks(t *testing.T) {
	testkit.LongOrRace(t)
	often(t, "CONFORM_REVOCATIONS", 100)
	for _, kind := range transporttest.Kinds {
		t.Run(kind.String(), func(t *testing.T) {
			seeds(t, func(t *testing.T) {
				require.NoError(t, conform.Cyclic(2, 1).RunOver(t.Context(), transporttest.New(t, kind).Node, onesided.Revocations))
			})
		})
	}
}

// TestTakeBack is the take-backs of one host between two.
func TestTakeBack(t *testing.T) {
	testkit.LongOrRace(t)
	often(t, "CONFORM_TAKEBACKS", 200)
	seeds(t, func(t *testing.T) {
		require.NoError(t, conform.Block(1, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit},
			func(ctx context.Context, c *ubcoll.Comm) error { return onesided.TakeBack(ctx, c) }))
	})
}
