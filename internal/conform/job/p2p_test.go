package main

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// programRanks are the numbers of ranks that run random programs.
func programRanks() []int {
	if testkit.Full() {
		return []int{2, 3, 4, 5, 6, 7, 8}
	}
	return []int{2, 3, 5, 8}
}

// programs is how many random programs each number of ranks runs: CONFORM_PROGRAMS, or 10,000 in all in full runs.
func programs(t *testing.T) string {
	t.Helper()
	n := strconv.Itoa(testkit.Often(1430))
	if s := os.Getenv("CONFORM_PROGRAMS"); s != "" {
		n = s
	}
	t.Logf("%s programs for each number of ranks", n)
	return n
}

func TestProgramsLocal(t *testing.T) {
	t.Setenv("CONFORM_PROGRAMS", programs(t))
	for _, n := range programRanks() {
		if (race.Enabled || testing.Short()) && n > 3 || testkit.Daily() && n > 2 {
			break
		}
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) { local(t, n, ubcoll.Options{}, "programs") })
	}
}

func TestProgramsProcesses(t *testing.T) {
	testkit.Long(t) // TestProcesses has some
	extra := []string{"CONFORM_PROGRAMS=" + programs(t), fmt.Sprintf("TEST_SEED=%d", testkit.Seed(t))}
	for _, ranks := range programRanks() {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			start(t, ranks, extra, "programs").succeed(t)
		})
	}
}

// TestCircle runs processes that all send first.
func TestCircle(t *testing.T) {
	start(t, 3, nil, "circle").succeed(t)
}
