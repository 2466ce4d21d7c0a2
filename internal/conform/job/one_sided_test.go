package main

import (
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// oneSided are the suites of communicator families, handles, channels and windows. Windows come last: they abort a
// communicator, and memory that is freed after that is not reused.
var oneSided = []string{"family", "handles", "channels", "access", "atomics", "windows"}

func TestOneSidedLocal(t *testing.T) {
	sizes := divided([]int{1, 3, 4}, 2, 8)
	if race.Enabled || testing.Short() {
		sizes = []int{3}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			local(t, n, ubcoll.Options{Timeout: testkit.Limit}, oneSided...)
		})
	}
}

func TestOneSidedProcesses(t *testing.T) {
	testkit.SkipRace(t)
	sizes := divided([]int{2, 8}, 3, 4)
	if race.Enabled || testing.Short() {
		sizes = []int{3}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			start(t, n, nil, testkit.Turns(t, 2, oneSided)...).succeed(t)
		})
	}
}

func TestMPIOneSided(t *testing.T) {
	for _, n := range divided([]int{3}, 2, 4, 8) {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			runMPI(t, n, n, nil, oneSided...)
		})
	}
}
