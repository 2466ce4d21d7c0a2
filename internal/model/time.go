package model

import (
	"math/bits"

	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Link is how many picoseconds a byte takes on the link of a host, which its lanes share; 0 if that limits nothing.
type Link float64

// Terms is what an operation consists of by a way of Ways or Small, on the host that does most.
func Terms(l *team.Layout, m *schedule.Model, o Op, way schedule.Way) schedule.Terms {
	bytes := Bytes(l, o)
	small := way == schedule.Folded || way == schedule.Shared || way == schedule.Routed
	if small {
		bytes = carried(l, o, way)
	}
	t := m.Terms(way, l.Hosts, bytes)
	n := float64(l.Hosts)
	switch {
	case small && reduces(o.Kind):
		t.Combined = t.Swapped
	case o.Kind == team.KindReduceScatter:
		t.Combined += (n - 1) / n * float64(bytes)
	}
	// What the ranks of a host combine and copy among themselves. Each byte of a lane is combined of all of them, or copied to
	// all, or both.
	if others := float64(l.Most - 1); others > 0 {
		switch b := float64(bytes); o.Kind {
		case team.KindAllReduce:
			t.Combined += 2 * others * b
		case team.KindBroadcast, team.KindReduce, team.KindAllGather, team.KindReduceScatter:
			t.Combined += others * b
		default:
			t.Combined += b
		}
	}
	return t
}

// carried is how many bytes a host sends in all rounds of the agreement.
func carried(l *team.Layout, o Op, way schedule.Way) int {
	rounds, block, source := bits.Len(uint(l.Hosts-1)), o.Count*o.Size, Source(l, o)
	switch way {
	case schedule.Folded:
		if inPairs(l) {
			return rounds * source
		}
		return (l.Hosts - 1) * source // dissemination would count folds twice
	case schedule.Routed:
		if o.Kind != team.KindAllToAll {
			return (l.Hosts - 1) * block
		}
		passed := 0 // a block goes on as often as its distance has bits
		for x := range l.Hosts {
			passed += bits.OnesCount(uint(x))
		}
		return passed * block
	}
	switch o.Kind {
	case team.KindBroadcast:
		return rounds * source // the root's, in each round
	case team.KindScatter: // likewise, without those of its own host
		return rounds * (l.Ranks - (l.Ranks+l.Hosts-1)/l.Hosts) * block
	case team.KindAllGather, team.KindGather:
		return (l.Hosts - 1) * l.Most * source
	case team.KindAllToAll:
		return (l.Hosts - 1) * l.Most * (l.Ranks - l.Most) * block
	case team.KindReduceScatter: // of two hosts
		return source / 2
	}
	return (l.Hosts - 1) * source
}

// Time is about how many nanoseconds an operation takes by a way of Ways or Small.
func Time(l *team.Layout, m *schedule.Model, link Link, o Op, way schedule.Way) float64 {
	t := Terms(l, m, o, way)
	if o.Kind == team.KindBarrier || o.Count == 0 {
		t = schedule.Terms{Rounds: t.Rounds}
	}
	processors := m.Price(t)
	rest := t
	rest.Sent, rest.Swapped, rest.Relayed, rest.Around = 0, 0, 0, 0
	lanes := float64(l.Lanes)
	if way == schedule.Folded || way == schedule.Shared || way == schedule.Routed {
		lanes = 1
	}
	wire := float64(link) * 1e-3 * lanes * (t.Sent + t.Swapped + t.Relayed + t.Around)
	return max(processors, m.Price(rest)+wire)
}
