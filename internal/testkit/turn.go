package testkit

import (
	"hash/fnv"
	"os"
	"strconv"
	"testing"

	"github.com/ubcoll/ubcoll/internal/race"
)

// turnVar is set by scripts/test: a number that the commit's hash gives.
const turnVar = "UBCOLL_TEST_TURN"

// Turn skips t, case i of a slow table, unless it is this commit's turn: scripts/test runs the first case, which should be
// the one that finds most, and one in that many of all cases, which the commit's hash chooses; with the race detector
// others than without. Full runs, and those of go test alone, have all cases.
func Turn(t testing.TB, i, of int) {
	t.Helper()
	if !InTurn(i, of) {
		t.Skipf("other commits' turn (%s): make test FULL=1 has it, and go test alone", turnVar)
	}
}

// InTurn reports whether it is case i's turn, as for Turn.
func InTurn(i, of int) bool {
	turn, ok := turn()
	return !ok || i == 0 || comes(turn, i, of, race.Enabled)
}

// Turns returns the cases whose turn it is, as for Turn, and logs how many are left out. It is for cases that are no tests
// of their own.
func Turns[C any](t testing.TB, of int, cases []C) []C {
	t.Helper()
	turn, ok := turn()
	if !ok {
		return cases
	}
	var some []C
	for i, c := range cases {
		if i == 0 || comes(turn, i, of, race.Enabled) {
			some = append(some, c)
		}
	}
	t.Logf("%d of %d cases: the others are other commits' turn (%s): make test FULL=1 has all, and go test alone", len(some), len(cases), turnVar)
	return some
}

// NameTurn is Turn for tests of which one in that many is in turn. Its name says when.
func NameTurn(t testing.TB, of int) {
	t.Helper()
	h := fnv.New32a()
	h.Write([]byte(t.Name()))
	Turn(t, 1+int(h.Sum32()%1000), of)
}

func comes(turn uint64, i, of int, race bool) bool {
	k := turn + uint64(i)
	if race {
		k++
	}
	return k%uint64(of) == 0
}

func turn() (uint64, bool) {
	s := os.Getenv(turnVar)
	if s == "" || Full() {
		return 0, false
	}
	turn, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(turnVar + ": " + err.Error())
	}
	return turn, true
}
