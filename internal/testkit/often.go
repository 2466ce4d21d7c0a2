package testkit

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/race"
)

// Often returns how often a test repeats what it draws at random. That is full times with UBCOLL_TEST_FULL=1, which is
// set by hand. Else it is a tenth of that, a twentieth with the race detector, or a hundredth in daily runs, and at least
// once.
func Often(full int) int {
	switch {
	case os.Getenv("UBCOLL_TEST_FULL") == "1":
		return full
	case race.Enabled:
		return (full + 19) / 20
	case testing.Short():
		return (full + 99) / 100
	}
	return (full + 9) / 10
}

// Seeds returns the seeds that a random test runs with: a fixed one, so that whoever breaks the test notices, and a fresh
// one, which is logged. Daily runs have only the fixed one. If TEST_SEED is set, it is the only one.
func Seeds(t testing.TB) []uint64 {
	t.Helper()
	if os.Getenv(seedVar) != "" {
		return []uint64{Seed(t)}
	}
	if Daily() {
		t.Logf("%s=%d", seedVar, fixedSeed)
		return []uint64{fixedSeed}
	}
	fresh := rand.Uint64()
	t.Logf("%s=%d and %s=%d", seedVar, fixedSeed, seedVar, fresh)
	return []uint64{fixedSeed, fresh}
}
