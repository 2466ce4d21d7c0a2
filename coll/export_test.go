package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/team"
)

// SkipWait makes the ring read data that its left neighbour may not have written yet.
func SkipWait() {
	waitLeft = func(context.Context, *team.Team, int, uint64, string) error { return nil }
}
