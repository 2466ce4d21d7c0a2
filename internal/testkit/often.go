package testkit

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/race"
)

// Full reports whether this is a full run, by UBCOLL_TEST_FULL=1 or make test FULL=1: nothing is left out. It takes hours.
func Full() bool { return os.Getenv("UBCOLL_TEST_FULL") == "1" }

// Often returns how often a test repeats what it draws at random. That is full times in full runs. Else it is a tenth of
// that, a twentieth with the race detector, or a hundredth in daily runs, and at least once.
func Often(full int) int {
	switch {
	case Full():
		return full
	case race.Enabled:
		return (full + 19) / 20
	case testing.Short():
		return (full + 99) / 100
	}
	return (full + 9) / 10
}

// Seeds returns the seeds that a random test runs with: a fixed one, so that whoever breaks the test notices, and a fresh
// one, which is logged. Outside of full runs the fixed one is for daily runs and those with the race detector, and the
// fresh one for the others. If TEST_SEED is set, it is the only one.
func Seeds(t testing.TB) []uint64 {
	t.Helper()
	if os.Getenv(seedVar) != "" {
		return []uint64{Seed(t)}
	}
	fresh := rand.Uint64()
	switch {
	case Full():
		t.Logf("%s=%d and %s=%d", seedVar, fixedSeed, seedVar, fresh)
		return []uint64{fixedSeed, fresh}
	case race.Enabled || testing.Short():
		t.Logf("%s=%d", seedVar, fixedSeed)
		return []uint64{fixedSeed}
	}
	t.Logf("%s=%d", seedVar, fresh)
	return []uint64{fresh}
}
