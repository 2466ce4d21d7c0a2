package flight

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// edge says that a rank waits for another, of the job.
type edge struct {
	t    *Table
	wait *Wait // as it is published; nil: it follows from its operation
	op   *Op   // then
	to   int
}

// what is "recv #3 from rank 1".
func (e edge) what() string {
	if e.wait == nil {
		return e.op.title()
	}
	w := *e.wait
	w.Peer = e.to
	return w.String()
}

// graph collects who waits for whom in all communicators. What a rank has published counts, and else that a collective waits
// for all that have not called it: such waits lead through nodes below 0, one for each position at which ranks are, so that
// there are no more edges than ranks.
func (j *join) graph() {
	j.edges = map[int][]edge{}
	node := 0
	for _, t := range j.f.Comms {
		at := map[int][]*seat{}
		for _, s := range t.seats {
			if s.side != nil && !s.shut && s.pos < t.top {
				at[s.pos] = append(at[s.pos], s)
			}
		}
		at[t.top] = nil
		nodes := map[int]int{} // by position: those below it
		for i, p := range slices.Sorted(maps.Keys(at)) {
			if node--; i > 0 {
				j.edges[node] = append(j.edges[node], edge{t: t, to: node + 1})
			}
			nodes[p] = node
			for _, s := range at[p] {
				j.edges[node-1] = append(j.edges[node-1], edge{t: t, to: s.rank})
			}
		}
		for _, s := range t.seats {
			switch {
			case s.side == nil || s.shut:
			case s.side.Waits != nil && !s.calls(s.side.Waits):
				j.published(t, s)
			case s.side.Waits != nil && t.behind(s, s.side.Waits.Peer):
				j.published(t, s)
			case s.entered() && s.pos > t.low:
				j.edges[s.rank] = append(j.edges[s.rank], edge{t: t, op: s.last, to: nodes[s.pos]})
			}
		}
	}
}

// published adds what a rank has published that it waits for.
func (j *join) published(t *Table, s *seat) {
	if to := t.ofJob(s.side.Waits.Peer); to >= 0 && to != s.rank {
		j.edges[s.rank] = append(j.edges[s.rank], edge{t: t, wait: s.side.Waits, to: to})
	}
}

// calls reports whether w is a wait in the last operation of s.
func (s *seat) calls(w *Wait) bool { return s.open() && w.Op == s.last.Name() && w.Seq == s.last.Seq }

// behind reports whether a rank of the communicator has not called the last operation of s, or nothing is known of it.
func (t *Table) behind(s *seat, rank int) bool {
	o := t.at[t.ofJob(rank)]
	return o == nil || s.entered() && (o.side == nil || o.shut || o.pos < s.pos)
}

// messages finds ranks that wait for nobody, and for which others wait in a message or the like.
func (j *join) messages() {
	type end struct {
		t       *Table
		first   edge
		from    *seat
		waiters []int
	}
	ends := map[int]*end{}
	for _, r := range slices.Sorted(maps.Keys(j.edges)) {
		for _, e := range j.edges[r] {
			s := e.t.at[max(r, 0)]
			if r < 0 || e.wait == nil || s.calls(e.wait) || len(j.edges[e.to]) > 0 {
				continue
			}
			if ends[e.to] == nil {
				ends[e.to] = &end{t: e.t, first: e, from: s}
			}
			ends[e.to].waiters = append(ends[e.to].waiters, r)
		}
	}
	for _, to := range slices.Sorted(maps.Keys(ends)) {
		e := ends[to]
		s := e.t.at[to]
		if s == nil {
			continue // nothing is known of it: see lost
		}
		text := fmt.Sprintf("rank %d waits in %s%s", e.from.rank, e.first.what(), j.tell(e.t, []*seat{s}))
		text += lane(e.t, e.from, s, e.first.wait)
		if n := len(e.waiters); n > 1 {
			more := ranksOf(e.waiters[1:]...)
			text += fmt.Sprintf("; %v %s for it, too", more, more.verb("waits", "wait"))
		}
		kind := Missing
		if s.dead || s.dump == nil {
			kind = Lost
		}
		j.blame(ranksOf(to))
		j.found(kind, e.t, ranksOf(to), "%s", text)
	}
}

// lane says how many messages the rank has sent or received that another waits for; "" if that is not known.
func lane(t *Table, from, to *seat, w *Wait) string {
	if to.comm == nil || w.Seq == 0 || w.Op != "send" && w.Op != "recv" {
		return ""
	}
	rank := from.rank
	if len(t.members) != 0 {
		rank = slices.Index(t.members, from.rank)
	}
	l := Lane{}
	for _, k := range to.comm.Messages {
		if k.Peer == rank && k.Recv == (w.Op == "send") {
			l = k
		}
	}
	if l.Busy {
		return ""
	}
	begun := l.Over + uint64(max(l.Count, len(l.Open), 0))
	switch {
	case w.Op == "recv" && w.Seq > begun:
		return fmt.Sprintf("; it has sent %d messages to rank %d, and not #%d", begun, from.rank, w.Seq)
	case w.Op == "send" && w.Seq > begun:
		return fmt.Sprintf("; it has called %d receives from rank %d, and not #%d", begun, from.rank, w.Seq)
	case w.Op == "recv":
		return "; it has sent that message, which has not arrived"
	}
	return "; it has called that receive, and the data have not all arrived"
}

// circles finds ranks that wait for each other: in each strongly connected part of the graph, a shortest circle through its
// lowest rank.
func (j *join) circles() {
	for _, part := range j.parts() {
		in := map[int]bool{}
		first := math.MaxInt
		for _, n := range part {
			if in[n] = true; n >= 0 {
				first = min(first, n)
			}
		}
		from := map[int]edge{} // the edge by which a node was reached first, with the node where it begins
		begin := map[int]int{}
		for queue := []int{first}; len(queue) > 0; queue = queue[1:] {
			for _, e := range j.edges[queue[0]] {
				if _, ok := from[e.to]; in[e.to] && !ok {
					from[e.to], begin[e.to] = e, queue[0]
					queue = append(queue, e.to)
				}
			}
			if _, ok := from[first]; ok {
				break
			}
		}
		var nodes []int
		for n := begin[first]; n != first; n = begin[n] {
			nodes = append(nodes, n)
		}
		nodes = append(nodes, first)
		slices.Reverse(nodes)
		j.circle(slices.DeleteFunc(slices.Clone(nodes), func(n int) bool { return n < 0 }), nodes, from)
	}
}

// circle describes a circle of ranks, whose nodes are those of the graph, in order. from has the edge to each node.
func (j *join) circle(ranks, nodes []int, from map[int]edge) {
	const most = 8
	var steps []string
	ops := map[string]bool{}
	out := map[int]edge{} // the edge from each rank
	for i, n := range nodes {
		out[n] = from[nodes[(i+1)%len(nodes)]]
	}
	for i, r := range ranks {
		e := out[r]
		what := e.what()
		if e.wait == nil {
			what += fmt.Sprintf(" for rank %d", ranks[(i+1)%len(ranks)])
			ops[e.op.Name()] = true
		} else {
			ops[e.wait.Op] = true
		}
		if i < most {
			steps = append(steps, fmt.Sprintf("rank %d in %s", r, what))
		}
	}
	if len(ranks) > most {
		steps = append(steps, "...")
	}
	why := "they make their calls in different orders"
	switch {
	case len(ops) == 1 && ops["send"]:
		why = "all send first and nobody receives; SendRecv or a Group does both at the same time"
	case len(ops) == 1 && ops["recv"]:
		why = "all receive first and nobody sends; SendRecv or a Group does both at the same time"
	}
	j.found(Circle, out[ranks[0]].t, ranksOf(ranks...), "%s -> rank %d: %s", strings.Join(steps, " -> "), ranks[0], why)
}

// parts are the strongly connected parts of the graph with two ranks or more, by their lowest ranks.
func (j *join) parts() (all [][]int) {
	index, low, on := map[int]int{}, map[int]int{}, map[int]bool{}
	var stack []int
	var visit func(n int)
	visit = func(n int) {
		index[n] = len(index) + 1
		low[n] = index[n]
		stack = append(stack, n)
		on[n] = true
		for _, e := range j.edges[n] {
			if index[e.to] == 0 {
				visit(e.to)
				low[n] = min(low[n], low[e.to])
			} else if on[e.to] {
				low[n] = min(low[n], index[e.to])
			}
		}
		if low[n] != index[n] {
			return
		}
		var part []int
		ranks := 0
		for last := n + 1; last != n; {
			last = stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			part, on[last] = append(part, last), false
			if last >= 0 {
				ranks++
			}
		}
		if ranks > 1 {
			all = append(all, part)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(j.edges)) {
		if n >= 0 && index[n] == 0 {
			visit(n)
		}
	}
	return all
}
