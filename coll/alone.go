package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/team"
)

// runAlone is every collective of a team of one rank.
func runAlone(_ context.Context, _ *team.Team, w *team.Work) error {
	if w.Dst.Ptr != nil && w.Src.Ptr != nil && (w.Dst.Ptr != w.Src.Ptr || w.Red == team.PreMulSum) {
		load(w, w.Dst.Ptr, w.Src.Ptr, w.Src.Len)
	}
	return nil
}
