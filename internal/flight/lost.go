package flight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// report collects what ranks say of others that are lost.
func (j *join) report() {
	j.lost = map[int]*said{}
	for _, t := range j.f.Comms {
		for _, s := range t.seats {
			if why := s.broken(); strings.Contains(why, fault.ErrPeerLost.Error()) {
				if r := t.ofJob(s.comm.Peer); r >= 0 {
					if j.lost[r] == nil {
						j.lost[r] = newSaid()
					}
					j.lost[r].addError(why, s.rank)
				}
			}
		}
	}
}

// gone finds ranks of which others say that they are lost, and those that have no dump.
func (j *join) gone() {
	reports := j.lost // by the rank that they name
	report := func(r int) string {
		all := reports[r].all()
		var list []int
		for _, s := range all {
			for _, x := range s.Ranks {
				for k := x.first; k <= x.last; k++ {
					list = append(list, k)
				}
			}
		}
		tellers := ranksOf(list...)
		return fmt.Sprintf("%v %s: %s", tellers, tellers.verb("reports", "report"), all[0].Text)
	}
	known := map[int]*seat{}
	var dead []int
	for _, t := range j.f.Comms {
		for _, s := range t.seats {
			if s.side == nil {
				continue
			}
			if o := known[s.rank]; o == nil || s.dead {
				known[s.rank] = s
			}
			if s.dead && !j.blamed.Has(s.rank) {
				dead = append(dead, s.rank)
			}
		}
	}
	told := map[int]bool{}
	var found []Finding
	say := func(k Kind, ranks Ranks, format string, args ...any) {
		found = append(found, Finding{Kind: k, Ranks: ranks, Text: fmt.Sprintf(format, args...)})
	}
	wanted := j.wanted()
	// Hosts of which nothing is known.
	var list []int
	for _, r := range j.silent {
		for k := r.first; k <= r.last; k++ {
			if known[k] == nil {
				list = append(list, k)
			}
		}
	}
	byHost := newSaid()
	for _, r := range list {
		byHost.add(j.hostOf(r), r)
	}
	for _, h := range byHost.all() {
		text, awaited := h.Ranks.String()+" "+h.Ranks.verb("has", "have")+" written nothing, nor has anybody else of the host", j.waiters(h.Ranks)
		if h.Text != "" {
			text = fmt.Sprintf("host %s (%v) has written nothing", h.Text, h.Ranks)
		}
		text += ": dead, stopped, or cut off from the network"
		kind := Silent
		if awaited != "" {
			kind, text = Lost, text+"; "+awaited
		}
		for _, r := range slices.Sorted(maps.Keys(reports)) {
			if h.Ranks.Has(r) {
				kind, told[r], text = Lost, true, text+"; "+report(r)
			}
		}
		say(kind, h.Ranks, "%s", text)
	}
	for _, r := range slices.Sorted(maps.Keys(reports)) {
		if !told[r] {
			say(Lost, ranksOf(r), "%s", report(r))
			j.blame(ranksOf(r))
		}
	}
	if dead := ranksOf(dead...).without(j.blamed); len(dead) > 0 {
		say(Lost, dead, "%v %s dead", dead, dead.verb("is", "are"))
		j.blame(dead)
	}
	// Those of whom others of their host tell, perhaps in another communicator only.
	var quiet []int
	for _, r := range j.silent {
		for k := r.first; k <= r.last; k++ {
			switch s := known[k]; {
			case s == nil || j.blamed.Has(k):
			case len(j.edges[k]) == 0 && wanted(k):
				say(Lost, ranksOf(k), "rank %d (host %s, pid %d) has written no dump: it is stopped, or runs other code and has not noticed; %s",
					k, s.host, s.pid, j.waiters(ranksOf(k)))
			default:
				quiet = append(quiet, k)
			}
		}
	}
	if quiet := ranksOf(quiet...); len(quiet) > 0 {
		say(Silent, quiet, "%v %s written no dump; what is said of %s, others of the host have seen", quiet, quiet.verb("has", "have"),
			quiet.verb("it", "them"))
	}
	// What they report comes before what is concluded.
	j.f.Findings = append(found, j.f.Findings...)
	if len(j.f.Findings) == 0 {
		j.broken()
	}
}

// broken says why communicators are broken, if nothing else does.
func (j *join) broken() {
	for _, t := range j.f.Comms {
		for _, s := range t.seats {
			if s.broken() != "" {
				who := s.rank
				if r := t.ofJob(s.comm.Peer); r >= 0 {
					who = r
				}
				j.found(Broken, t, ranksOf(who), "rank %d reports: %s", s.rank, brief(s.broken()))
				return
			}
		}
	}
}

// hostOf is the name of a rank's host, or "".
func (j *join) hostOf(rank int) string {
	if j.hosts == nil {
		return ""
	}
	return j.hosts[rank]
}

// wanted returns a function that reports whether waiters has anybody for a rank.
func (j *join) wanted() func(rank int) bool {
	some := map[int]bool{}
	for r, es := range j.edges {
		for _, e := range es {
			if r >= 0 {
				some[e.to] = true
			}
		}
	}
	return func(rank int) bool {
		return some[rank] || slices.ContainsFunc(j.f.Comms, func(t *Table) bool { return len(t.awaits) > 0 && t.unknown.Has(rank) })
	}
}

// waiters says who waits for some ranks, as they have published it or since all others have come; "" if nobody.
func (j *join) waiters(ranks Ranks) string {
	what := map[int]string{}
	for r, es := range j.edges {
		for _, e := range es {
			if r >= 0 && ranks.Has(e.to) && what[r] == "" {
				what[r] = e.what()
			}
		}
	}
	for _, t := range j.f.Comms {
		if t.unknown.without(ranks).Len() == t.unknown.Len() {
			continue
		}
		for _, s := range t.awaits {
			if what[s.rank] == "" {
				what[s.rank] = s.last.title()
			}
		}
	}
	if len(what) == 0 {
		return ""
	}
	list := slices.Sorted(maps.Keys(what))
	if len(list) == 1 {
		return fmt.Sprintf("rank %d waits for that in %s", list[0], what[list[0]])
	}
	return fmt.Sprintf("%v wait for that, rank %d in %s", ranksOf(list...), list[0], what[list[0]])
}
