package flight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
)

// refused is the call of an operation whose arguments were wrong on its rank.
const refused = "refused"

// mismatch finds the first position at which calls differ. It reports whether ranks still wait or fail there.
func (j *join) mismatch(t *Table) bool {
	calls, first, found := map[int]string{}, 0, false
	for _, s := range t.seats {
		for _, p := range s.ops {
			if c, ok := calls[p.at]; !ok && p.op.Name() != refused {
				calls[p.at] = p.op.Call
			} else if ok && p.op.Name() != refused && c != p.op.Call && (!found || p.at < first) {
				first, found = p.at, true
			}
		}
	}
	if !found {
		return false
	}
	type group struct {
		ranks []int
		op    *Op
	}
	var groups []*group
	by := map[string]*group{}
	past := true // all have ended it, and agreed on the last that all have called
	for _, s := range t.seats {
		o := s.op(first)
		if o == nil || o.Name() == refused {
			continue
		}
		g := by[o.Call]
		if g == nil {
			g = &group{op: o}
			by[o.Call] = g
			groups = append(groups, g)
		}
		g.ranks = append(g.ranks, s.rank)
		past = past && o.Over() && s.pos > first && t.low > first && s.op(t.low) != nil && s.op(t.low).Call == calls[t.low]
	}
	// The most are right. If there are as many of several, those with the lowest rank are, which comes first.
	slices.SortStableFunc(groups, func(a, b *group) int { return len(b.ranks) - len(a.ranks) })
	var odd []int
	var parts []string
	for i, g := range groups[1:] {
		odd = append(odd, g.ranks...)
		if i < 3 {
			parts = append(parts, fmt.Sprintf("%v called %s as #%d", ranksOf(g.ranks...), g.op.Call, g.op.Seq))
		} else if i == 3 {
			parts = append(parts, "others called something else")
		}
	}
	parts = append(parts, fmt.Sprintf("%v %s", ranksOf(groups[0].ranks...), groups[0].op.Call))
	if groups[0].op.Seq != groups[1].op.Seq {
		parts[len(parts)-1] += fmt.Sprintf(" as #%d", groups[0].op.Seq)
	}
	kind := Mismatch
	if past {
		kind = Survived
	}
	j.found(kind, t, ranksOf(odd...), "%s", strings.Join(parts, ", "))
	return !past
}

func (j *join) found(k Kind, t *Table, ranks Ranks, format string, args ...any) {
	f := Finding{Kind: k, Ranks: ranks, Text: fmt.Sprintf(format, args...)}
	if t != nil {
		f.Comm = t.ID
	}
	j.f.Findings = append(j.f.Findings, f)
}

// progress finds the ranks that others wait for in a collective, or that have not ended it.
func (j *join) progress(t *Table) {
	var last, behind, waiting, absent []*seat
	came := false // all to the greatest position: those of lesser ones are of earlier moments
	for _, s := range t.seats {
		came = came || s.pos == t.top && s.came()
		if s.side == nil || s.shut {
			absent = append(absent, s)
			continue
		}
		switch {
		case s.pos == t.low && t.low < t.top:
			behind = append(behind, s)
		case s.open() || s.last != nil && s.last.State == Failed.String():
			waiting = append(waiting, s)
		}
		if s.last != nil && s.pos == t.top {
			last = append(last, s)
		}
	}
	if behind = append(behind, absent...); !came && len(behind) > 0 && len(waiting) > 0 {
		j.missing(t, behind, waiting)
	} else {
		j.unfinished(t, last, came)
	}
	j.devices(t)
}

// missing says that some ranks have not called an operation in which, or in one after which, others wait.
func (j *join) missing(t *Table, behind, waiting []*seat) {
	free := slices.DeleteFunc(slices.Clone(behind), func(s *seat) bool { return len(j.edges[s.rank]) > 0 })
	kind := Missing
	if len(free) == 0 {
		kind, free = Follows, behind
	}
	var in []*seat // those in the first of these operations
	for _, s := range waiting {
		if len(in) == 0 || s.pos == in[0].pos {
			in = append(in, s)
		} else if s.pos < in[0].pos {
			in = []*seat{s}
		}
	}
	verb := ranksOfSeats(waiting).verb("waits", "wait")
	if !slices.ContainsFunc(waiting, (*seat).open) {
		verb = "waited"
	}
	text := fmt.Sprintf("%v %s in %s", ranksOfSeats(waiting), verb, in[0].last.title())
	if len(in) < len(waiting) {
		text += " and later operations"
	}
	text += longest(in)
	who := ranksOfSeats(free)
	for _, s := range free {
		if s.dead || s.dump == nil && kind == Missing {
			kind = Lost
		}
	}
	j.blame(who)
	j.found(kind, t, who, "%s for %v%s", text, who, j.tell(t, free))
}

// ranksOfSeats is the set of the ranks of seats.
func ranksOfSeats(all []*seat) Ranks {
	var list []int
	for _, s := range all {
		list = append(list, s.rank)
	}
	return ranksOf(list...)
}

func (j *join) blame(ranks Ranks) {
	var list []int
	for _, set := range []Ranks{j.blamed, ranks} {
		for _, r := range set {
			for k := r.first; k <= r.last; k++ {
				list = append(list, k)
			}
		}
	}
	j.blamed = ranksOf(list...)
}

// tell says where ranks are and what they do, of which the first speaks for all.
func (j *join) tell(t *Table, all []*seat) string {
	s := all[0]
	var b strings.Builder
	its, it := "its", "it"
	if len(all) == 1 {
		fmt.Fprintf(&b, " (host %s, pid %d)", s.host, s.pid)
	} else {
		it = fmt.Sprintf("rank %d", s.rank)
		its = it + "'s"
	}
	b.WriteString(": ")
	switch {
	case s.gone:
		fmt.Fprintf(&b, "%s has no such communicator: it has closed it, or not made it yet", it)
	case s.shut:
		fmt.Fprintf(&b, "%s has closed the communicator", it)
	case s.last == nil:
		fmt.Fprintf(&b, "%s has called no collective in this communicator yet", it)
	case s.open():
		fmt.Fprintf(&b, "%s is still in %s (%s)%s", it, s.last.title(), s.last.State, longest([]*seat{s}))
	case s.last.State == Failed.String():
		fmt.Fprintf(&b, "%s last operation, %s, failed: %s", its, s.last.title(), s.last.Error)
	default:
		fmt.Fprintf(&b, "%s last operation was %s%s", its, s.last.title(), s.ended())
	}
	switch {
	case s.dead:
		b.WriteString("; it is dead")
	case j.lost[s.rank] != nil:
		b.WriteString("; others report that it is lost")
	case len(j.edges[s.rank]) > 0:
		fmt.Fprintf(&b, "; it waits itself, in %s", j.edges[s.rank][0].what())
	case s.dump == nil:
		b.WriteString("; it has written no dump: it is stopped, or runs other code and has not noticed")
	case s.gone || s.shut:
	case s.broken() != "" && s.comm.Peer == s.comm.Rank && strings.Contains(s.broken(), fault.ErrAborted.Error()):
		fmt.Fprintf(&b, "; it aborted: %s", brief(s.broken()))
	case s.last == nil:
		b.WriteString("; it runs code of its own")
	case s.last.Over():
		b.WriteString("; since then it runs code of its own")
	}
	return b.String()
}

// unfinished says what has not ended although all ranks have called it, or have as far as is known.
func (j *join) unfinished(t *Table, last []*seat, came bool) {
	var open, failed []*seat
	for _, s := range t.seats {
		if s.side != nil && !s.shut && s.open() {
			open = append(open, s)
		}
	}
	for _, s := range last {
		if s.last.State == Failed.String() {
			failed = append(failed, s)
		}
	}
	if !came && len(t.unknown) > 0 { // nobody knows of those
		for _, s := range last {
			if s.entered() || s.last.State == Failed.String() {
				t.awaits = append(t.awaits, s)
			}
		}
		return
	}
	if len(open) == 0 {
		return
	}
	first := slices.MinFunc(open, func(a, b *seat) int { return cmp.Compare(a.pos, b.pos) })
	in := slices.DeleteFunc(slices.Clone(open), func(s *seat) bool { return s.pos != first.pos })
	who, text := ranksOfSeats(in), ""
	var ended []int
	for _, s := range t.seats {
		if o := s.op(first.pos); o != nil && (s.pos > first.pos || !s.open()) && o.State != Failed.String() {
			ended = append(ended, s.rank)
		}
	}
	states := newSaid()
	for _, s := range in {
		states.add(stateText(s.last.State), s.rank)
	}
	var parts []string
	for _, s := range states.all() {
		parts = append(parts, fmt.Sprintf("%v %s", s.Ranks, s.Text))
	}
	text = fmt.Sprintf("%s has not ended%s: %s", first.last.title(), longest(in), strings.Join(parts, ", "))
	if ended != nil {
		text += fmt.Sprintf("; it has ended on %v", ranksOf(ended...))
	}
	if failed != nil {
		text += fmt.Sprintf("; on %v it has failed: %s", ranksOfSeats(failed), failed[0].last.Error)
		if ended == nil {
			who = ranksOfSeats(failed)
		}
	}
	kind := Unfinished
	if end, by := t.idle(in); end != nil {
		who = ranksOf(end.rank)
		text += fmt.Sprintf("; rank %d waits for rank %d, which waits for nobody", by.rank, end.rank)
		if end.dump == nil {
			text += " and has written no dump: it is stopped, or slow"
			kind = Lost
			j.blame(who)
		}
	}
	for _, s := range in {
		if s.dead {
			kind, who = Lost, ranksOf(s.rank)
			text += fmt.Sprintf("; rank %d is dead", s.rank)
			j.blame(who)
			break
		}
	}
	j.found(kind, t, who, "%s", text)
}

func stateText(state string) string {
	switch state {
	case Entered.String():
		return "entered it and have not seen all others"
	case Agreed.String():
		return "move data"
	case Queued.String():
		return "queued it on devices that have not ended it"
	}
	return state
}

// idle is the one of some seats for which others wait, and which waits for nobody; nil if there is none, or more than one.
func (t *Table) idle(in []*seat) (end, by *seat) {
	for _, s := range in {
		seen := map[int]bool{}
		at, from := s, (*seat)(nil)
		for !seen[at.rank] && at.side.Waits != nil {
			seen[at.rank] = true
			next := t.at[t.ofJob(at.side.Waits.Peer)]
			if next == nil || next.side == nil {
				return nil, nil
			}
			at, from = next, at
		}
		switch {
		case from == nil || seen[at.rank] || !slices.Contains(in, at):
		case end != nil && end != at:
			return nil, nil
		default:
			end, by = at, from
		}
	}
	return end, by
}

// devices finds devices that have not ended what is queued on them where that is no collective.
func (j *join) devices(t *Table) {
	var busy, idle []*seat
	for _, s := range t.seats {
		switch {
		case s.comm == nil || s.comm.Device == nil:
		case s.comm.Device.Busy && (s.last == nil || s.last.State != Queued.String()):
			busy = append(busy, s)
		case !s.comm.Device.Busy:
			idle = append(idle, s)
		}
	}
	if len(busy) == 0 {
		return
	}
	text := fmt.Sprintf("devices have not ended what is queued on them by %v (rank %d: %s)", ranksOfSeats(busy), busy[0].rank,
		busy[0].comm.Device.Name)
	if len(idle) > 0 {
		text += fmt.Sprintf("; those of %v have", ranksOfSeats(idle))
	}
	j.found(Unfinished, t, ranksOfSeats(busy), "%s", text)
}
