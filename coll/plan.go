package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// The paths.
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

// plan chooses how a collective travels: a pure function of what all ranks agree on, so that all choose alike.
func plan(c *engine.Comm, w *engine.Work) {
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
	case c.Groups() > 0 && planGroups(c, w), planEager(c, w):
	case isReduction(w.Kind):
		w.Path = &reducePath
	default:
		w.Path = &movePath
	}
}
