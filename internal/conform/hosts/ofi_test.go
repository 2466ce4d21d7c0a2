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
// have all layouts and providers, and revocations. Commits take turns with the provider's remote memory access and without.
func TestOFI(t *testing.T) {
	testkit.Long(t) // the layout is not one of those of short runs
	if p := fabric.Have(); p.Err != nil {
		testkit.Missing(t, "libfabric", p.Err)
	}
	which := "^TestHosts$/^abaa"
	cases := []struct{ provider, rma string }{{"tcp;ofi_rxm", "auto"}, {"tcp;ofi_rxm", "off"}}
	if testkit.Full() { // udp;ofi_rxd is not sound on a busy machine
		which, cases = "^(TestHosts|TestRevocations)", append(cases, struct{ provider, rma string }{"sockets", "off"})
	}
	for _, k := range testkit.Turns(t, 2, cases) {
		t.Run(k.provider+" "+k.rma, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=30m", "-test.run="+which)
			cmd.Env = append(cmd.Environ(), "UBCOLL_OFI=on", "UBCOLL_OFI_PROVIDER="+k.provider, "UBCOLL_OFI_RMA="+k.rma,
				"UBCOLL_REQUIRE=libfabric", testkit.NoSleep)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "\n    --- PASS: TestHosts/")
			require.Equal(t, strings.Count(string(out), "other commits' turn"), strings.Count(string(out), "--- SKIP: TestHosts"),
				"skipped for another reason: %s", out)
		})
	}
}
