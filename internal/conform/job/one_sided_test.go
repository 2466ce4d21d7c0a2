package main

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// oneSided are the suites of communicator families, handles, channels and windows. Windows come last: they abort a
// communicator, and what is freed after that is not used again.
var oneSided = []string{"family", "handles", "channels", "windows"}

func TestOneSidedLocal(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 8}
	if race.Enabled || testing.Short() {
		sizes = []int{1, 2, 3}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			local(t, n, ubcoll.Options{Timeout: testkit.Limit}, oneSided...)
		})
	}
}

func TestOneSidedProcesses(t *testing.T) {
	sizes := []int{2, 3, 4, 8}
	if race.Enabled || testing.Short() {
		sizes = []int{2, 3}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			start(t, n, nil, oneSided...).succeed(t)
		})
	}
}

func TestMPIOneSided(t *testing.T) {
	for _, n := range []int{2, 3, 4, 8} {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			runMPI(t, n, n, nil, oneSided...)
		})
	}
}

// TestKillWait kills a random rank while all signal and wait.
func TestKillWait(t *testing.T) {
	rounds := 15
	if testing.Short() || race.Enabled {
		rounds = 3
	}
	seed := conform.Seed()
	t.Logf("TEST_SEED=%d", seed)
	pick := rand.New(rand.NewPCG(seed, 1))
	killRounds(t, "kill-wait", rounds, func() int { return 2 + pick.IntN(3) }, pick)
}
