package testkit

import (
	"fmt"
	"hash/fnv"
	"path/filepath"
	"runtime"
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

// Sample returns all cases; in daily runs the first and each step-th after it. In runs of scripts/test it returns the first
// and every third of all (with a step of 2, every second), in turns (see Turn). Tables whose cases are combined do not take
// the same turns: where they are in the source makes a difference, so that each combination has its commits.
func Sample[C any](step int, cases []C) (some []C) {
	if Daily() {
		for i := 0; i < len(cases); i += step {
			some = append(some, cases[i])
		}
		return some
	}
	turn, ok := turn()
	if !ok {
		return cases
	}
	_, file, line, _ := runtime.Caller(1)
	h := fnv.New64a()
	fmt.Fprint(h, turn, filepath.Base(file), line)
	for i, c := range cases {
		if i == 0 || comes(h.Sum64()>>1, i, min(step, 3), race.Enabled) {
			some = append(some, c)
		}
	}
	return some
}
