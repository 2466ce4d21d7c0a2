package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/mixed"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

// TestRandomPrograms runs 2000 random programs on goroutine ranks, or CONFORM_PROGRAMS. TEST_SEED repeats a run.
func TestRandomPrograms(t *testing.T) {
	programs := 2000
	if race.Enabled || testing.Short() {
		programs = 60
	}
	programs, err := conform.Number("CONFORM_PROGRAMS", programs)
	require.NoError(t, err)
	seed := testkit.Seed(t)
	options := []ubcoll.Options{{}, {Register: register.Explicit}, {Algorithm: "ring"}, {Register: register.Off},
		{Algorithm: "two-shot"}, {Algorithm: "one-shot"}, {Algorithm: "push"}}
	ranks := []int{2, 3, 4, 5}
	each := (programs + len(ranks)*len(options) - 1) / (len(ranks) * len(options))
	for k := range len(ranks)*len(options) + 1 {
		o, n, programs := options[k%len(options)], 17, each/4 // so many agree by group
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
