package model

import (
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// collNetCall is about how many nanoseconds a call of a CollNet plugin takes beside its bytes. Nobody has measured a switch; SHARP's
// are said to take less.
const collNetCall = 20_000

// ByCollNet reports whether a CollNet plugin does an operation that it can do: if it is asked for, or costs less than the best way
// unless another is asked for.
func ByCollNet(l *team.Layout, m *schedule.Model, asked string, o Op) bool {
	if asked == "collnet" {
		return true
	}
	way := Way(l, m, asked, o)
	if asked == way.String() || l.CollNet.Speed <= 0 {
		return false
	}
	bytes := o.Count * o.Size
	if o.Kind != team.KindAllReduce {
		bytes *= l.Most * l.Hosts
	}
	return collNetCall+float64(bytes)*8e3/float64(l.CollNet.Speed) < m.Cost(way, l.Hosts, Bytes(l, o))
}
