//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestHostsOFI: jobs of processes on several hosts work over libfabric, and deaths are named there as over TCP. In full runs all
// suites, and CONFORM_KILLS deaths, UBCOLL_OFI_PROVIDER names another provider.
func TestHostsOFI(t *testing.T) {
	t.Parallel()
	testkit.Long(t)
	provider := os.Getenv("UBCOLL_OFI_PROVIDER")
	if provider == "" {
		provider = "tcp;ofi_rxm"
	}
	vars := append(acrossVars(), "UBCOLL_OFI=on", "UBCOLL_OFI_PROVIDER="+provider, "UBCOLL_REQUIRE=libfabric")
	bin := program(t)
	all := append([]string{"matrix", "sums"}, acrossSuites...)
	for i, p := range places() {
		if s := p.String(); s != "2,2 block" && s != "3,1 block" {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			suites := testkit.Turns(t, 4, all[i%2:])
			h := across(t, len(p.ranks), p.options(), vars, append([]string{bin}, suites...)...)
			if err := h.wait(t); err != nil && strings.Contains(h.out.String(), "no libfabric") {
				testkit.Missing(t, "libfabric", h.out.String())
			} else {
				require.NoError(t, err, h.out.String())
			}
			for _, s := range suites {
				require.Contains(t, h.out.String(), fmt.Sprintf("ok %s: %d ranks", s, p.size()))
			}
		})
	}
	deaths, err := conform.Number("CONFORM_KILLS", 2)
	require.NoError(t, err)
	seed := testkit.Seed(t)
	for k := range deaths {
		own := rand.New(rand.NewPCG(seed, uint64(k)))
		t.Run(fmt.Sprintf("death %d", k), func(t *testing.T) { death(t, []int{killRank, cutLink, killHost}[k%3], own, vars...) })
	}
}
