package coll

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// choosePathBetween is choosePath for a communicator that spans hosts. All ranks refuse operations that do not cross
// hosts yet; each does so by itself, without hearing from the others.
func choosePathBetween(c *engine.Comm, w *team.Work) {
	switch w.Kind {
	case team.KindAllReduce, team.KindBroadcast:
		choosePath(c.Team(), w)
	default:
		w.Err = c.BetweenHosts("")
	}
}
