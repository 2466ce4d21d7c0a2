//go:build cgo

package hosts

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

// TestCollNet has a switch do what it can of all collectives: the others go on as before, beside it.
func TestCollNet(t *testing.T) {
	switchtest.Use(t)
	t.Setenv(env.Algorithm.Name, "collnet")
	all := []named{{"matrix", collectives.Matrix}, {"random", collectives.Random}, {"moves", collectives.Moves}, {"order", collectives.Order}, {"bad", collectives.Bad}}
	for _, l := range layouts() {
		run(t, l, append(all, suites...)...)
	}
	_ = conform.Seed
}
