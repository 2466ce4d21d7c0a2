package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/race"
)

// programs is how many random programs each number of ranks from 2 to 8 runs: CONFORM_PROGRAMS, or 10,000 in all, and
// fewer with the race detector.
func programs(t *testing.T) string {
	t.Helper()
	n := "1430"
	if s := os.Getenv("CONFORM_PROGRAMS"); s != "" {
		n = s
	} else if race.Enabled || testing.Short() {
		n = "150"
	}
	t.Logf("%s programs for each number of ranks", n)
	return n
}

func TestProgramsLocal(t *testing.T) {
	t.Setenv("CONFORM_PROGRAMS", programs(t))
	for n := 2; n <= 8; n++ {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) { local(t, n, ubcoll.Options{}, "programs") })
	}
}

func TestProgramsProcesses(t *testing.T) {
	n := "CONFORM_PROGRAMS=" + programs(t)
	t.Logf("TEST_SEED=%d", conform.Seed())
	for ranks := 2; ranks <= 8; ranks++ {
		if race.Enabled && ranks > 3 { // what the detector sees lies within a process
			break
		}
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			start(t, ranks, []string{n}, "programs").succeed(t)
		})
	}
}

// TestCircle has processes that all send first.
func TestCircle(t *testing.T) {
	start(t, 3, nil, "circle").succeed(t)
}
