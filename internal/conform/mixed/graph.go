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

func (p *program) capture() error {
	if len(p.graphs) == 3 {
		return p.launch()
	}
	g := &captured{t: p.drawSiblings(), onStream: p.all.IntN(3) == 0 || p.dev != ubcoll.Host}
	for range 1 + p.all.IntN(4) {
		k := p.draw(ours, false)
		if p.all.IntN(3) == 0 {
			k.kind = "all_to_all_v"
		}
		p.note("captured: %v by %v", k, g.t.groups)
		g.calls = append(g.calls, k)
	}
	p.graphs = append(p.graphs, g)
	t := g.t
	if t.c == nil {
		return nil
	}
	view := t.c
	if g.onStream {
		view = t.c.On(p.stream)
	}
	var err error
	g.g, err = graph.Capture(p.ctx, view, func(c *ubcoll.Comm) error {
		for _, k := range g.calls {
			own := k.in(t)
			g.own = append(g.own, own)
			if err := p.do(t, c, own); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// recount draws other counts for an all-to-all that fit into what was captured.
func (p *program) recount(g *captured, k *call) {
	counts := make([][]int, p.n)
	for s := range counts {
		counts[s] = make([]int, p.n)
		for d := range counts[s] {
			counts[s][d] = p.all.IntN(k.fit[s][d] + 1)
		}
	}
	if len(g.t.groups) == 1 && p.all.IntN(2) == 0 { // for some pairs more than at the capture, if there is room
		n := len(g.t.groups[0])
		for range n * n {
			s, d := p.all.IntN(n), p.all.IntN(n)
			room := min(sumOfInts(k.fit[s][:n])-sumOfInts(counts[s][:n]), sumOfInts(due(k.fit, n, d))-sumOfInts(due(counts, n, d)))
			counts[s][d] += p.all.IntN(room + 1)
		}
	}
	k.counts = counts
}

// launch launches a graph, with other counts or with wrong ones.
func (p *program) launch() error {
	if len(p.graphs) == 0 {
		return p.calls()
	}
	g := p.graphs[p.all.IntN(len(p.graphs))]
	t := g.t
	for range 1 + p.all.IntN(3) {
		for _, k := range g.calls {
			if k.kind == "all_to_all_v" && p.all.IntN(2) == 0 {
				p.recount(g, k)
			}
		}
		bad, odd, what := -1, p.all.IntN(64), p.all.IntN(4)
		if i := p.all.IntN(len(g.calls)); g.calls[i].vectors() && p.all.IntN(3) == 0 {
			bad = i
		}
		for i, k := range g.calls {
			p.note("launched: %v, wrong %v", k, i == bad)
			if i == bad {
				break
			}
			p.apply(t, k)
		}
		if err := p.launchOnce(g, bad, odd, what); err != nil {
			return err
		}
		if err := p.renew(bad >= 0); err != nil {
			return err
		}
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

// launchOnce launches this rank's graph, if it has one. The counts of call bad are wrong on rank odd, if bad is not -1.
func (p *program) launchOnce(g *captured, bad, odd, what int) error {
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
			vector[p.mine.IntN(n)] = []int{-5, p.room + 1, 200000 + p.room, 1 << 62}[what]
		}
	}
	err := errors.Join(g.g.Launch(p.ctx), p.stream.Sync(p.ctx))
	if bad >= 0 {
		err = p.expect("a launch with wrong counts", t.c, err, ubcoll.ErrArgument)
	}
	return err
}

func (p *program) closeGraph(i int) error {
	if i >= len(p.graphs) {
		return nil
	}
	g := p.graphs[i]
	p.graphs = slices.Delete(p.graphs, i, i+1)
	if g.g == nil {
		return nil
	}
	if err := g.g.Close(); err != nil {
		return err
	}
	return p.expect("launch of a closed graph", g.t.c, g.g.Launch(p.ctx), ubcoll.ErrClosed)
}
