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

// programs is how many random programs each number of ranks from 2 to 8 runs: CONFORM_PROGRAMS, or 10,000 in all in
// full runs.
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
	for n := 2; n <= 8; n++ {
		if (race.Enabled || testing.Short()) && n > 3 || testkit.Daily() && n > 2 {
			break
		}
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) { local(t, n, ubcoll.Options{}, "programs") })
	}
}

func TestProgramsProcesses(t *testing.T) {
	testkit.LongOrRace(t) // TestProcesses has some
	extra := []string{"CONFORM_PROGRAMS=" + programs(t), fmt.Sprintf("TEST_SEED=%d", testkit.Seed(t))}
	for ranks := 2; ranks <= 8; ranks++ {
		if (race.Enabled || testing.Short()) && ranks > 3 { // the race detector sees within one process only
			break
		}
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			start(t, ranks, extra, "programs").succeed(t)
		})
	}
}

// TestCircle runs processes that all send first.
func TestCircle(t *testing.T) {
	start(t, 3, nil, "circle").succeed(t)
}
