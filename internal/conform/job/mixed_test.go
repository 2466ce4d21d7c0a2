package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/mixed"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

// TestRandomPrograms runs random programs on goroutine ranks: 2000 in full runs, or CONFORM_PROGRAMS for each seed.
// TEST_SEED repeats a run.
func TestRandomPrograms(t *testing.T) {
	testkit.LongOrRace(t)
	programs, err := conform.Number("CONFORM_PROGRAMS", testkit.Often(1000))
	require.NoError(t, err)
	for _, seed := range testkit.Seeds(t) {
		randomPrograms(t, seed, programs)
	}
}

func randomPrograms(t *testing.T, seed uint64, programs int) {
	options := []ubcoll.Options{{}, {Register: register.Explicit}, {Algorithm: "ring"}, {Register: register.Off},
		{Algorithm: "two-shot"}, {Algorithm: "one-shot"}, {Algorithm: "push"}}
	ranks := []int{2, 3, 4, 5}
	each := (programs + len(ranks)*len(options) - 1) / (len(ranks) * len(options))
	for k := range len(ranks)*len(options) + 1 {
		o, n, programs := options[k%len(options)], 17, (each+3)/4 // 17 ranks agree by group
		if k < len(ranks)*len(options) {
			n, programs = ranks[k/len(options)], each
		}
		t.Run(fmt.Sprintf("ranks=%d/%v/%s", n, o.Register, o.Algorithm), func(t *testing.T) {
			leaks := testkit.NoLeaks(t)
			o.Timeout = testkit.Limit
			require.NoError(t, ubcoll.Local(t.Context(), n, o, mixed.Programs(seed+uint64(k), programs)))
			leaks()
		})
	}
}
