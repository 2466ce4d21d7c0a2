//go:build cgo

package hosts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestRDMA: on hosts with RDMA devices, which the double stands for, nothing goes by TCP, and everything works as it does
// there. Full runs have all layouts, and revocations.
func TestRDMA(t *testing.T) {
	testkit.Long(t) // the layout is not one of those of short runs
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
	which := "^TestHosts$/^abaa"
	if testkit.Full() {
		which = "^(TestHosts|TestRevocations)"
	}
	out := verbstest.Again(t, verbstest.Knobs{"SILENT": "1"}, "-test.run="+which)
	require.Contains(t, out, "\n    --- PASS: TestHosts/")
	require.Equal(t, strings.Count(out, "other commits' turn"), strings.Count(out, "--- SKIP: TestHosts"), "skipped for another reason: %s", out)
}
