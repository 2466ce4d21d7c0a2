package coll

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// way is how an all-reduce beyond eager size goes.
type way int

const (
	twoShotWay way = iota
	oneShot
	push
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

// choose is the way of an all-reduce of so many bytes.
func choose(c *engine.Comm, bytes int, how engine.Where) way {
	switch algorithm := c.Options().Algorithm; {
	case algorithm == "two-shot":
		return twoShotWay
	case algorithm == "one-shot" && how.AllSrc && !how.InPlace:
		return oneShot
	case algorithm == "push" && how.AllSrc && how.AllDst:
		return push
	case algorithm != "":
		return twoShotWay
	case how.AllSrc && how.AllDst && (how.InPlace || bytes >= c.Tuning().PushFrom):
		return push
	case how.AllSrc && !how.InPlace && bytes*c.Size() <= c.Tuning().OneShotTotal:
		return oneShot
	}
	return twoShotWay
}

// directSlice is how many bytes of a slice one round of a two-shot takes when nothing is staged.
const directSlice = 256 << 10

// streams reports whether a result of so many bytes, which is no rank's source, should be written past the caches.
func streams(c *engine.Comm, bytes int) bool { return bytes >= c.Tuning().StreamFrom }
