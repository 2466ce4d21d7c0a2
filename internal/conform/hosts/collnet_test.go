package hosts

import (
	"testing"

	"github.com/ubcoll/ubcoll/hw/collnet"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

// TestCollNet has a switch do what it can of all collectives: the others go on as before, beside it. Full runs have all layouts;
// others two, and internal/conform/job has four hosts.
func TestCollNet(t *testing.T) {
	testkit.Long(t)
	if !collnet.Supported {
		t.Skip("this build loads no plugins")
	}
	switchtest.Use(t)
	t.Setenv(env.Algorithm.Name, "collnet")
	all := append([]named{{"random", collectives.Random}, {"matrix", collectives.Matrix}, {"moves", collectives.Moves}, {"order", collectives.Order},
		{"bad", collectives.Bad}}, suites...)
	for i, l := range layouts() {
		if s := l.String(); testkit.Full() || s == "abaa" || s == "abc" {
			runTurns(t, l, i+1, 4, all...)
		}
	}
}
