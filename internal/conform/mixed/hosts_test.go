package mixed_test

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

// TestHostsPrograms runs random programs on goroutine ranks that claim to be on several hosts: 800 in full runs, or
// CONFORM_PROGRAMS for each seed. TEST_SEED repeats a run.
func TestHostsPrograms(t *testing.T) {
	programs, err := conform.Number("CONFORM_PROGRAMS", testkit.Often(800))
	require.NoError(t, err)
	options := []ubcoll.Options{{}, {Register: register.Explicit}, {Algorithm: "ring"}, {Algorithm: "chain"},
		{Register: register.Off}, {Algorithm: "doubling"}, {Algorithm: "halving"}, {Algorithm: "tree"}, {Algorithm: "scatter"},
		{Algorithm: "pairwise"}}
	layouts := []conform.Layout{conform.Block(2, 2, 1), conform.Cyclic(3, 1), conform.Cyclic(2, 1, 1), conform.Block(1, 1, 1, 1)}
	for _, seed := range testkit.Seeds(t) {
		cases := len(layouts) * len(options)
		each := max(programs/cases, 1)
		for k := range min(cases, programs) {
			l, o := layouts[k%len(layouts)], options[k%len(options)]
			o.Timeout = testkit.Limit
			t.Run(fmt.Sprintf("%v/%v/%s/seed=%d", l, o.Register, o.Algorithm, seed+uint64(k)), func(t *testing.T) {
				leaks := testkit.NoLeaks(t)
				require.NoError(t, l.Run(t.Context(), o, mixed.Programs(seed+uint64(k), each)))
				leaks()
			})
		}
	}
}
