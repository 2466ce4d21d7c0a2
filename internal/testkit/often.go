package testkit

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/internal/race"
)

// Often is how often a test does what it draws at random, which is full times where UBCOLL_TEST_FULL=1, by hand. Else it
// is a tenth of that, and a twentieth in short runs and with the race detector, but once at least.
func Often(full int) int {
	switch {
	case os.Getenv("UBCOLL_TEST_FULL") == "1":
		return full
	case race.Enabled || testing.Short():
		return (full + 19) / 20
	}
	return (full + 9) / 10
}

// Seeds are the seeds that a random test runs with: one that is always the same, so that a change that breaks it is
// found by whoever makes it, and a fresh one, which is logged. TEST_SEED is the only one where it is set.
func Seeds(t testing.TB) []uint64 {
	t.Helper()
	if os.Getenv(seedVar) != "" {
		return []uint64{Seed(t)}
	}
	fresh := rand.Uint64()
	t.Logf("%s=%d and %s=%d", seedVar, fixedSeed, seedVar, fresh)
	return []uint64{fixedSeed, fresh}
}

// Long skips what takes long in short runs, which make check has, and says so.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make test has it")
	}
}
