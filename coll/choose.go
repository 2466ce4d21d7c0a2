package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The paths. Those that choose among algorithms as they run have the name of one.
var (
	alonePath   = team.Path{Name: "copy", Run: runAlone}
	barrierPath = team.Path{Name: "descriptors"}
	eagerPath   = team.Path{Name: "eager", Offer: offerEager, Run: runEager}
	groupsPath  = team.Path{Name: "groups", Offer: offerEager, Combine: combineGroup, Run: runGroups}
	ringPath    = team.Path{Name: "ring", Acquire: acquire, Run: runRing}
	reducePath  = team.Path{Name: "two-shot", Acquire: acquire, Run: runReduce}
	movePath    = team.Path{Name: "pull", Acquire: acquire, Run: runMove}
	vectorPath  = team.Path{Name: "pull", Acquire: acquireVector, Offer: offerSource, Check: checkRows, Run: runMove}
)

// choosePath sets how a collective travels: a pure function of what the team agrees on, so that its ranks choose
// alike.
func choosePath(t *team.Team, w *team.Work) {
	if t.Hosts != nil {
		chooseAcross(t, w)
		return
	}
	chooseHere(t, w)
}

// chooseHere is choosePath among the team, of a part of the operation where there are other hosts.
func chooseHere(t *team.Team, w *team.Work) {
	switch {
	case isVector(w.Kind):
		w.Path, w.EagerBytes = &vectorPath, carriedAt(t)
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

// algorithm is how the data of operations beyond eager size travels.
type algorithm int

const (
	byTwoShot algorithm = iota
	byOneShot
	byPush  // an all-reduce, or a gather in which each rank delivers its part
	byPull  // each rank fetches its parts
	byShare // a broadcast in which the root delivers as much as each of the others fetches
)

// allReduceAlgorithm is how an all-reduce of so many bytes travels: a function of the descriptors, which the team
// sees.
func allReduceAlgorithm(t *team.Team, bytes int, how team.BufferLayout) algorithm {
	switch asked := t.Algorithm(); {
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

// algorithm is how a move travels: a function of the descriptors, which the team sees.
func (m *move) algorithm() algorithm {
	switch m.w.Kind {
	case team.KindGather, team.KindGatherV: // one rank would fetch, the others wait
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
