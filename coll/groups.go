package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Small reductions in a team that has too many ranks for each to agree with each go by groups. Sources travel as in
// eager collectives. Each group's leader combines the sources of its group before it announces that the group agrees,
// and every rank that wants the result combines the partial results of all groups. So a rank reads at most the sources
// of one group and one partial result of each group, and waits only for agreement.
//
// Sources are combined in rank order within a group, and groups in the order of their leaders. All ranks of the team
// get the same bits, but these may differ from those of plain rank order.

// tryGroups makes w go by groups if that is possible, and quicker than otherwise. Half types are excluded: between the
// two steps a sum would be rounded, and might overflow.
func tryGroups(t *team.Team, w *team.Work) bool {
	if w.Kind != team.KindAllReduce && w.Kind != team.KindReduce ||
		w.Type == dtype.Float16 || w.Type == dtype.BFloat16 {
		return false
	}
	n := w.Count * w.Type.Size()
	if n > team.PayloadSize && (n > min(t.Tuning().CombineUpTo, team.PartialBytes) || t.Algorithm() != "") {
		return false
	}
	setEager(w, &groupsPath, n)
	return true
}

func combineGroup(t *team.Team, w *team.Work) {
	bytes := w.Count * w.Type.Size()
	members := t.Members()
	srcs := t.Scratch()[:len(members)]
	for i, r := range members {
		srcs[i] = slot(t, w, r)
	}
	cpu.ReduceN(w.Type, w.Red.Op(), t.Partial(t.Group(), bytes), srcs, w.Count, 1, false)
}

func runGroups(ctx context.Context, t *team.Team, w *team.Work) error {
	if w.Dst.Ptr == nil || w.Count == 0 {
		return nil
	}
	k := newCall(ctx, t, w)
	parts := t.Scratch()[:t.Groups()]
	for g := range parts {
		parts[g] = t.Partial(g, w.Count*k.size)
	}
	k.reduce(w.Dst.Ptr, parts, w.Count, false)
	return nil
}
