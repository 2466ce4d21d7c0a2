package testkit

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/race"
)

// Daily reports whether this is a run like that of make check: short, and without the race detector. It does each kind of
// thing once, with little data and few ranks. Short runs with the race detector do what the detector has to see, too.
func Daily() bool { return testing.Short() && !race.Enabled }

// Long skips a long test in short runs, like those of make check, and says so.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make test has it")
	}
}

// LongOrRace skips a long test in daily runs. The race detector has to see it.
func LongOrRace(t testing.TB) {
	t.Helper()
	if Daily() {
		t.Skip("takes long: make test has it, with the race detector, too")
	}
}

// SkipRace skips a test in short runs with the race detector, which has nothing to see there: one goroutine computes, or
// processes of one rank each. All other runs have it.
func SkipRace(t testing.TB) {
	t.Helper()
	if race.Enabled && testing.Short() {
		t.Skip("no goroutines share anything here: runs without the race detector have it")
	}
}

// Sample returns all cases; in daily runs the first and each step-th after it.
func Sample[C any](step int, cases []C) (some []C) {
	if !Daily() {
		return cases
	}
	for i := 0; i < len(cases); i += step {
		some = append(some, cases[i])
	}
	return some
}
