package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/engine"
)

// runAlone is every collective of a team of one rank.
func runAlone(_ context.Context, _ *engine.Comm, w *engine.Work) error {
	if w.Dst.Ptr != nil && w.Src.Ptr != nil && (w.Dst.Ptr != w.Src.Ptr || w.Red == engine.PreMulSum) {
		load(w, w.Dst.Ptr, w.Src.Ptr, w.Src.Len)
	}
	return nil
}
