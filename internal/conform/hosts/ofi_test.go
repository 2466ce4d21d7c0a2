//go:build cgo

package hosts

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	fabric "github.com/ubcoll/ubcoll/hw/ofi"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestOFI: where libfabric carries the data between hosts, nothing goes by TCP, and everything works as it does there. Full runs
// have all layouts and providers, and revocations.
func TestOFI(t *testing.T) {
	testkit.Long(t) // the layout is not one of those of short runs
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	which, providers := "^TestHosts$/^abaa", []string{"tcp;ofi_rxm"}
	if testkit.Full() {
		which, providers = "^(TestHosts|TestRevocations)", append(providers, "udp;ofi_rxd")
	}
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=30m", "-test.run="+which)
			cmd.Env = append(cmd.Environ(), "UBCOLL_OFI=on", "UBCOLL_OFI_PROVIDER="+provider, "UBCOLL_REQUIRE=libfabric", testkit.NoSleep)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "\n    --- PASS: TestHosts/")
			require.Equal(t, strings.Count(string(out), "other commits' turn"), strings.Count(string(out), "--- SKIP: TestHosts"),
				"skipped for another reason: %s", out)
		})
	}
}
