package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// SkipWait makes the ring read what its left neighbour may not have written yet.
func SkipWait() {
	waitLeft = func(context.Context, *engine.Comm, int, uint64, string) error { return nil }
}
