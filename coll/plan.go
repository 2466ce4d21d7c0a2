package coll

import "github.com/ubcoll/ubcoll/internal/engine"

// plan chooses the algorithm: a pure function of what all ranks agree on, so that all choose alike.
func plan(c *engine.Comm, w *engine.Work) {
	if c.Size() == 1 {
		w.Algorithm, w.Run = "copy", copyRun
		return
	}
	w.Algorithm, w.Run = "ring", ringAllReduce
}
