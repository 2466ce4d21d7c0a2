package main

import (
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestProcesses(t *testing.T) {
	testkit.SkipRace(t)
	sizes := divided([]int{2, 8}, 3)
	suites := []string{"random", "matrix", "moves", "bad", "order", "imports", "p2p", "programs", "mixed", "exit-early"}
	if testing.Short() || race.Enabled {
		sizes, suites = []int{3}, []string{"random", "moves", "bad", "order", "p2p", "programs", "mixed", "exit-early"}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			start(t, n, nil, testkit.Turns(t, 2, suites)...).succeed(t)
		})
	}
}

// However many communicators there are, a rank holds one descriptor for each peer's process.
func TestDescriptors(t *testing.T) {
	start(t, 3, nil, "descriptors").succeed(t)
}
