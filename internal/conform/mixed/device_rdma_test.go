//go:build cgo

package mixed_test

import (
	"cmp"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/race"
)

// TestDeviceHostsProgramsRDMA is TestDeviceHostsPrograms where RDMA devices, which the double stands for, reach memory of devices.
func TestDeviceHostsProgramsRDMA(t *testing.T) {
	if race.Enabled || !emulated.Active() {
		t.Skip("with the race detector, or without emulated devices")
	}
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
	t.Setenv("CONFORM_PROGRAMS", cmp.Or(os.Getenv("CONFORM_PROGRAMS"), "50"))
	out := verbstest.Again(t, verbstest.Knobs{"SILENT": "1", "DMABUF": "1"}, "-test.run=^TestDeviceHostsPrograms$")
	require.Contains(t, out, "--- PASS: TestDeviceHostsPrograms/ab/")
}
