package mixed

import (
	"errors"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/graph"
)

// captured is a graph of calls of siblings, and what is known about them.
type captured struct {
	t        *siblings
	calls    []*call      // as drawn, with the counts of all ranks
	own      []*call      // this rank's calls, whose counts the graph reads
	g        *graph.Graph // nil if this rank is not in it
	onStream bool
}

func (m *program) capture() error {
	if len(m.graphs) == 3 {
		return m.launch()
	}
	g := &captured{t: m.drawSiblings(), onStream: m.all.IntN(3) == 0 || m.dev != ubcoll.Host}
	for range 1 + m.all.IntN(4) {
		k := m.draw(ours, false)
		if m.all.IntN(3) == 0 {
			k.kind = "all_to_all_v"
		}
		m.note("captured: %v by %v", k, g.t.groups)
		g.calls = append(g.calls, k)
	}
	m.graphs = append(m.graphs, g)
	t := g.t
	if t.c == nil {
		return nil
	}
	view := t.c
	if g.onStream {
		view = t.c.On(m.stream)
	}
	var err error
	g.g, err = graph.Capture(m.ctx, view, func(c *ubcoll.Comm) error {
		for _, k := range g.calls {
			own := k.in(t)
			g.own = append(g.own, own)
			if err := m.do(t, c, own); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// recount draws other counts for an all-to-all that fit into what was captured.
func (m *program) recount(g *captured, k *call) {
	counts := make([][]int, m.n)
	for s := range counts {
		counts[s] = make([]int, m.n)
		for d := range counts[s] {
			counts[s][d] = m.all.IntN(k.fit[s][d] + 1)
		}
	}
	if len(g.t.groups) == 1 && m.all.IntN(2) == 0 { // for some pairs more than at the capture, if there is room
		n := len(g.t.groups[0])
		for range n * n {
			s, d := m.all.IntN(n), m.all.IntN(n)
			room := min(sumOfInts(k.fit[s][:n])-sumOfInts(counts[s][:n]), sumOfInts(due(k.fit, n, d))-sumOfInts(due(counts, n, d)))
			counts[s][d] += m.all.IntN(room + 1)
		}
	}
	k.counts = counts
}

// launch launches a graph, with other counts or with wrong ones.
func (m *program) launch() error {
	if len(m.graphs) == 0 {
		return m.calls()
	}
	g := m.graphs[m.all.IntN(len(m.graphs))]
	t := g.t
	for range 1 + m.all.IntN(3) {
		for _, k := range g.calls {
			if k.kind == "all_to_all_v" && m.all.IntN(2) == 0 {
				m.recount(g, k)
			}
		}
		bad, odd, what := -1, m.all.IntN(64), m.all.IntN(4)
		if i := m.all.IntN(len(g.calls)); g.calls[i].vectors() && m.all.IntN(3) == 0 {
			bad = i
		}
		for i, k := range g.calls {
			m.note("launched: %v, wrong %v", k, i == bad)
			if i == bad {
				break
			}
			m.apply(t, k)
		}
		if err := m.launchOnce(g, bad, odd, what); err != nil {
			return err
		}
		if err := m.renew(bad >= 0); err != nil {
			return err
		}
		if err := m.check(); err != nil {
			return err
		}
	}
	return nil
}

// launchOnce launches this rank's graph, if it has one. The counts of call bad are wrong on rank odd, if bad is not -1.
func (m *program) launchOnce(g *captured, bad, odd, what int) error {
	t := g.t
	if t.c == nil {
		return nil
	}
	n := len(t.members())
	for i, own := range g.own {
		copy(own.send, g.calls[i].counts[t.rank][:n])
		copy(own.recv, due(g.calls[i].counts, n, t.rank))
	}
	if bad >= 0 {
		own := g.own[bad]
		if odd %= n; own.kind == "gather_v" || own.kind == "scatter_v" {
			odd = own.root
		}
		if odd == t.rank {
			vector := own.recv
			if own.kind == "scatter_v" || own.kind == "all_to_all_v" && what&1 == 0 {
				vector = own.send
			}
			vector[m.mine.IntN(n)] = []int{-5, m.room + 1, 200000 + m.room, 1 << 62}[what]
		}
	}
	err := errors.Join(g.g.Launch(m.ctx), m.stream.Sync(m.ctx))
	if bad >= 0 {
		err = m.expect("a launch with wrong counts", t.c, err, ubcoll.ErrArgument)
	}
	return err
}

func (m *program) closeGraph(i int) error {
	if i >= len(m.graphs) {
		return nil
	}
	g := m.graphs[i]
	m.graphs = slices.Delete(m.graphs, i, i+1)
	if g.g == nil {
		return nil
	}
	if err := g.g.Close(); err != nil {
		return err
	}
	return m.expect("launch of a closed graph", g.t.c, g.g.Launch(m.ctx), ubcoll.ErrClosed)
}
