// Package model says which way the data of a collective take between hosts, and about how long that takes. Both are pure
// functions of the operation, of what all ranks know of the hosts, and of what moving data costs: so all hosts choose alike,
// and what a larger cluster would do can be asked of any machine.
package model

import (
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Op is a collective of so many elements of Size bytes: those that Work.Count counts.
type Op struct {
	Kind        team.OpKind
	Count, Size int
}

// A lane passes on so many bytes through memory of its own at most: more between many hosts, where straight ways have a
// message for each.
const (
	mostHeld    = 2 << 20
	heldOfHosts = 32 << 10 // for each host, if that is more
)

var (
	pairwise       = schedule.Ways("all_to_all")
	allGathers     = schedule.Ways("all_gather")
	reduceScatters = schedule.Ways("reduce_scatter")
	gathers        = schedule.Ways("gather")
	scatters       = schedule.Ways("scatter")
	linear         = []schedule.Way{schedule.Linear}
)

// Chosen is the way that the library takes.
func Chosen(l *team.Layout, m *schedule.Model, asked string, o Op) schedule.Way {
	if way := Small(l, o); way != 0 {
		return way
	}
	return Way(l, m, asked, o)
}

// Ways are the ways that the data of an operation may take if they do not travel with the agreement.
func Ways(l *team.Layout, o Op) []schedule.Way {
	held := Bytes(l, o) <= max(mostHeld, heldOfHosts*l.Hosts)
	switch o.Kind {
	case team.KindAllReduce:
		return schedule.Reducing
	case team.KindBroadcast:
		return schedule.Sending
	case team.KindReduce:
		return schedule.ToRoot
	case team.KindAllGather:
		return allGathers
	case team.KindReduceScatter:
		if held && inPairs(l) {
			return reduceScatters
		}
	case team.KindGather:
		if held {
			return gathers
		}
		return linear
	case team.KindScatter:
		if held {
			return scatters
		}
		return linear
	}
	return pairwise
}

// Way is the way of Ways that was asked for, or that costs least by m.
func Way(l *team.Layout, m *schedule.Model, asked string, o Op) schedule.Way {
	ways := Ways(l, o)
	if asked != "" {
		for _, way := range ways {
			if way.String() == asked {
				return way
			}
		}
	}
	return m.Best(ways, l.Hosts, Bytes(l, o))
}

// Small is the way of small data, which travel with the messages by which the hosts agree; 0 if the operation's are larger.
// Operations with counts have none.
func Small(l *team.Layout, o Op) schedule.Way {
	block := o.Count * o.Size
	if isRouted(l, o.Kind) {
		if block > l.Routed {
			return 0
		}
		if o.Count == 0 {
			return schedule.Shared
		}
		return schedule.Routed
	}
	source := Source(l, o)
	contributed, most, outcome := source, l.Contribution, source // of a host; what a team gets
	switch o.Kind {
	case team.KindAllGather, team.KindGather:
		contributed, most, outcome = l.Most*source, l.Share, l.Ranks*source
	case team.KindAllToAll:
		contributed, most, outcome = l.Most*source, l.Share, l.Most*source
	}
	if l.Most > 1 {
		most = min(most, team.PartialBytes)
	}
	switch {
	case contributed > most, l.Most > 1 && outcome > team.PartialBytes:
		return 0
	case o.Kind == team.KindAllReduce, reduces(o.Kind) && l.Hosts > 2:
		return schedule.Folded
	}
	return schedule.Shared
}

// isRouted reports whether small data of an operation are routed. Hosts of several ranks would combine some of them twice.
func isRouted(l *team.Layout, kind team.OpKind) bool {
	if l.Most > 1 || l.Hosts == 2 {
		return false
	}
	switch kind {
	case team.KindAllToAll, team.KindScatter, team.KindGather:
		return true
	case team.KindReduceScatter:
		return inPairs(l)
	}
	return false
}

func inPairs(l *team.Layout) bool { return l.Hosts&(l.Hosts-1) == 0 }

func reduces(kind team.OpKind) bool {
	return kind == team.KindAllReduce || kind == team.KindReduce || kind == team.KindReduceScatter
}

// Source is the size of the largest source of a rank.
func Source(l *team.Layout, o Op) int {
	switch n := o.Count * o.Size; o.Kind {
	case team.KindReduceScatter, team.KindScatter, team.KindAllToAll:
		return n * l.Ranks
	default:
		return n
	}
}

// Slice is how many of n elements of size bytes a lane moves, but the last ones: whole cache lines.
func Slice(l *team.Layout, n, size int) int {
	line := 64 / size
	return ((n+l.Lanes-1)/l.Lanes + line - 1) / line * line
}

// Bytes is how many bytes a lane moves, of blocks those of all hosts together.
func Bytes(l *team.Layout, o Op) int {
	n := Slice(l, o.Count, o.Size) * o.Size
	switch o.Kind {
	case team.KindAllGather, team.KindReduceScatter, team.KindGather, team.KindScatter:
		n *= l.Ranks
	case team.KindAllToAll:
		n *= l.Ranks * l.Most
	}
	return n
}
