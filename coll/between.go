package coll

import (
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// choosePathBetween is choosePath for a communicator that spans hosts. What does not cross them yet is refused by all
// ranks, each of its own: none has to hear of it from the others.
func choosePathBetween(c *engine.Comm, w *team.Work) {
	switch w.Kind {
	case team.KindAllReduce, team.KindBroadcast:
		choosePath(c.Team(), w)
	default:
		w.Err = c.BetweenHosts(w.Kind.String())
	}
}
