package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// The paths. Those that choose among algorithms as they run have the name of one.
var (
	alonePath   = engine.Path{Name: "copy", Run: runAlone}
	barrierPath = engine.Path{Name: "descriptors"}
	eagerPath   = engine.Path{Name: "eager", Offer: offerEager, Run: runEager}
	groupsPath  = engine.Path{Name: "groups", Offer: offerEager, Combine: combineGroup, Run: runGroups}
	ringPath    = engine.Path{Name: "ring", Acquire: acquire, Run: runRing}
	reducePath  = engine.Path{Name: "two-shot", Acquire: acquire, Run: runReduce}
	movePath    = engine.Path{Name: "pull", Acquire: acquire, Run: runMove}
	vectorPath  = engine.Path{Name: "pull", Acquire: acquireVector, Offer: offerSource, Check: checkRows, Run: runMove}
)

// choosePath sets how a collective travels: a pure function of what the team agrees on, so that its ranks choose
// alike.
func choosePath(c *engine.Comm, w *engine.Work) {
	switch {
	case isVector(w.Kind):
		w.Path, w.EagerBytes = &vectorPath, carriedAt(c)
		if c.Size() > maxVectorRanks {
			w.Err = fmt.Errorf("%v of %d ranks, more than %d: %w", w.Kind, c.Size(), maxVectorRanks, fault.ErrLimit)
		}
	case c.Size() == 1:
		w.Path = &alonePath
	case w.Kind == engine.KindAllReduce && c.Options().Algorithm == "ring" && w.Red != engine.PreMulSum:
		w.Path = &ringPath
	case c.Groups() > 0 && tryGroups(c, w), tryEager(c, w):
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
func allReduceAlgorithm(c *engine.Comm, bytes int, how engine.Where) algorithm {
	switch asked := c.Options().Algorithm; {
	case asked == "two-shot":
		return byTwoShot
	case asked == "one-shot" && how.AllSrc && !how.InPlace:
		return byOneShot
	case asked == "push" && how.AllSrc && how.AllDst:
		return byPush
	case asked != "":
		return byTwoShot
	case how.AllSrc && how.AllDst && (how.InPlace || bytes >= c.Tuning().PushFrom):
		return byPush
	case how.AllSrc && !how.InPlace && bytes*c.Size() <= c.Tuning().OneShotTotal:
		return byOneShot
	}
	return byTwoShot
}

// algorithm is how a move travels: a function of the descriptors, which the team sees.
func (m *move) algorithm() algorithm {
	switch m.w.Kind {
	case engine.KindGather, engine.KindGatherV: // one rank would fetch, the others wait
		if m.c.DirectDst(m.w.Root) {
			return byPush
		}
	case engine.KindBroadcast:
		for r := range m.n {
			if r == m.w.Root && !m.c.Direct(r) || r != m.w.Root && !m.c.DirectDst(r) {
				return byPull
			}
		}
		return byShare
	}
	return byPull
}
