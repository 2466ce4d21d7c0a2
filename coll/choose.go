package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The paths. A path that chooses among algorithms as it runs is named after one of them.
var (
	alonePath         = team.Path{Name: "copy", Quick: true, Run: runAlone}
	barrierPath       = team.Path{Name: "descriptors", Quick: true, Carries: func(*team.Team, *team.Work) int { return 0 }}
	acrossBarrierPath = team.Path{Name: "descriptors"}
	eagerPath         = team.Path{Name: "eager", Quick: true, Offer: offerEager, Carries: eagerBytes, Run: runEager}
	groupsPath        = team.Path{Name: "groups", Quick: true, Offer: offerEager, Combine: combineGroup, Run: runGroups}
	ringPath          = team.Path{Name: "ring", Acquire: acquire, Run: runRing}
	reducePath        = team.Path{Name: "two-shot", Acquire: acquire, Run: runReduce}
	movePath          = team.Path{Name: "pull", Acquire: acquire, Run: runMove}
	vectorPath        = team.Path{Name: "pull", Acquire: acquireVector, Offer: offerSource, Check: checkRows, Run: runMove}
)

// choosePath sets how a collective travels. It is a pure function of what the team agrees on, so all ranks choose
// alike.
func choosePath(t *team.Team, w *team.Work) {
	switch {
	case t.Hosts != nil:
		chooseAcross(t, w)
	case isVector(w.Kind):
		w.Path, w.Eager.Bytes = &vectorPath, carriedAt(t)
		if t.Size() > maxVectorRanks {
			w.Err = fmt.Errorf("%v of %d ranks, more than %d: %w", w.Kind, t.Size(), maxVectorRanks, fault.ErrLimit)
		}
	case t.Size() == 1:
		w.Path = &alonePath
	case w.Kind == team.KindAllReduce && t.Algorithm() == "ring" && w.Red != team.PreMulSum:
		w.Path = &ringPath
	case t.Groups() > 0 && tryGroups(t, w), tryEager(t, w):
	case isReduction(w.Kind):
		w.Path = &reducePath
	default:
		w.Path = &movePath
	}
}

// onHost is the algorithm that was asked for, if it is one of a host's ranks, or "".
func onHost(asked string) string {
	switch asked {
	case schedule.Doubling.String(), schedule.Halving.String(), schedule.Chain.String(), schedule.Tree.String(),
		schedule.Scatter.String(), schedule.Pairwise.String(), collNet:
		return ""
	}
	return asked
}

// algorithm is how the data of operations above eager size travels.
type algorithm int

const (
	byTwoShot algorithm = iota
	byOneShot
	byPush  // an all-reduce, or a gather in which each rank writes its part to the root
	byPull  // each rank fetches its parts
	byShare // a broadcast in which the root writes a part to each rank, and the ranks fetch the rest
)

// allReduceAlgorithm chooses for an all-reduce of that many bytes, from the descriptors, which the whole team sees.
func allReduceAlgorithm(t *team.Team, bytes int, how team.BufferLayout) algorithm {
	switch asked := onHost(t.Algorithm()); {
	case asked == "two-shot":
		return byTwoShot
	case asked == "one-shot" && how.AllSrc && !how.InPlace:
		return byOneShot
	case asked == "push" && how.AllSrc && how.AllDst:
		return byPush
	case asked != "":
		return byTwoShot
	case how.AllSrc && how.AllDst && (how.InPlace || bytes >= t.Tuning().PushFrom):
		return byPush
	case how.AllSrc && !how.InPlace && bytes*t.Size() <= t.Tuning().OneShotTotal:
		return byOneShot
	}
	return byTwoShot
}

// algorithm chooses how a move travels, from the descriptors, which the whole team sees.
func (m *move) algorithm() algorithm {
	switch m.w.Kind {
	case team.KindGather, team.KindGatherV: // by pull, only the root would copy, and the others would wait
		if m.t.DirectDst(m.w.Root) {
			return byPush
		}
	case team.KindBroadcast:
		for r := range m.n {
			if r == m.w.Root && !m.t.Direct(r) || r != m.w.Root && !m.t.DirectDst(r) {
				return byPull
			}
		}
		return byShare
	}
	return byPull
}
