package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// runAlone runs any collective of a team of one rank.
func runAlone(_ context.Context, _ *team.Team, w *team.Work) error {
	switch {
	case w.Dst.Ptr == nil || w.Src.Ptr == nil || w.Dst.Ptr == w.Src.Ptr && !w.Changes():
	case w.Type == dtype.Bool:
		aloneBools(w)
	default:
		load(w, w.Dst.Ptr, w.Src.Ptr, w.Src.Len)
	}
	return nil
}

// aloneBools is runAlone for bools: a reduction turns every byte into 0 or 1.
func aloneBools(w *team.Work) {
	if !w.Red.Valid() {
		load(w, w.Dst.Ptr, w.Src.Ptr, w.Src.Len)
		return
	}
	srcs := [1]unsafe.Pointer{w.Src.Ptr}
	cpu.ReduceN(w.Type, w.Red.Op(), w.Dst.Ptr, srcs[:], w.Src.Len, 1, false)
}
