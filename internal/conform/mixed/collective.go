package mixed

import (
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
)

// draw returns a random call. Reductions of floats are drawn only if floats says that their sources can be filled
// first.
func (p *program) draw(slots int, floats bool) *call {
	k := &call{kind: operations[p.all.IntN(len(operations))], typ: dtype.Type(1 + p.all.IntN(int(dtype.Bool))),
		red: reductions[p.all.IntN(len(reductions))], root: p.all.IntN(64), inPlace: p.all.IntN(3) == 0}
	if k.reduces() && !floats && k.typ.Float() {
		k.typ = []dtype.Type{dtype.Int8, dtype.Uint16, dtype.Int32, dtype.Uint64}[p.all.IntN(4)]
	}
	if k.typ == dtype.Bool {
		k.red = []string{"min", "max"}[p.all.IntN(2)]
	}
	size := k.typ.Size()
	most := (p.room - 64) / size / p.n
	length := func() int {
		switch p.all.IntN(8) {
		case 0:
			return 0
		case 1, 2:
			return p.all.IntN(min(most, 9) + 1)
		case 3:
			return most
		}
		return p.all.IntN(most + 1)
	}
	k.count = length()
	k.src = place{slot: p.all.IntN(slots), at: p.all.IntN(64/size) * size}
	k.dst = place{slot: (k.src.slot + 1 + p.all.IntN(slots-1)) % slots, at: p.all.IntN(64/size) * size}
	for range p.n {
		k.factors = append(k.factors, []float64{-2, -1, 0, 0.5, 1, 2, 3}[p.all.IntN(7)])
		row, same := make([]int, p.n), length()
		for d := range row {
			if row[d] = same; k.kind == "scatter_v" || k.kind == "all_to_all_v" {
				row[d] = length()
			}
		}
		k.counts = append(k.counts, row)
	}
	k.fit = k.counts
	return k
}

// rooted returns c for a communicator of n ranks.
func (c *call) rooted(n int) *call {
	copied := *c
	copied.root = c.root % n
	return &copied
}

// in returns c for this rank's communicator of t, with this rank's counts.
func (c *call) in(t *siblings) *call {
	n := len(t.members())
	own := c.rooted(n)
	own.send, own.recv = append([]int(nil), c.counts[t.rank][:n]...), due(c.counts, n, t.rank)
	return own
}

func (c *call) String() string {
	s := fmt.Sprintf("%s of %d %v, root %d, in place %v, from slot %d+%d to %d+%d", c.kind, c.count, c.typ, c.root, c.inPlace,
		c.src.slot, c.src.at, c.dst.slot, c.dst.at)
	if c.reduces() {
		s += ", " + c.red
	}
	if c.vectors() {
		s += fmt.Sprintf(", %v", c.counts)
	}
	return s
}

func (p *program) vec(at place, t dtype.Type) ubcoll.Vec {
	if at.slot < 0 {
		return ubcoll.Vec{}
	}
	return p.slots[at.slot].vec.Slice(at.at, at.at+at.n).As(t)
}

// do makes the call on a view of t's communicator.
func (p *program) do(t *siblings, view *ubcoll.Comm, k *call) error {
	n := len(t.members())
	srcAt, dstAt := k.places(n, t.rank)
	return p.call(t, view, k, p.vec(dstAt, k.typ), p.vec(srcAt, k.typ), k.root)
}

func (p *program) call(t *siblings, view *ubcoll.Comm, k *call, dst, src ubcoll.Vec, root int) error {
	ctx := p.ctx
	switch k.kind {
	case "all_reduce":
		return coll.AllReduce(ctx, view, dst, src, k.op(t.rank))
	case "reduce_scatter":
		return coll.ReduceScatter(ctx, view, dst, src, k.op(t.rank))
	case "reduce":
		return coll.Reduce(ctx, view, dst, src, k.op(t.rank), root)
	case "all_gather":
		return coll.AllGather(ctx, view, dst, src)
	case "broadcast":
		if t.rank != k.root {
			src = dst
		}
		return coll.Broadcast(ctx, view, src, root)
	case "gather":
		return coll.Gather(ctx, view, dst, src, root)
	case "scatter":
		return coll.Scatter(ctx, view, dst, src, root)
	case "all_to_all":
		return coll.AllToAll(ctx, view, dst, src)
	case "all_gather_v":
		return coll.AllGatherV(ctx, view, dst, k.recv, src)
	case "gather_v":
		return coll.GatherV(ctx, view, dst, k.recv, src, root)
	case "scatter_v":
		return coll.ScatterV(ctx, view, dst, src, k.send, root)
	case "all_to_all_v":
		return coll.AllToAllV(ctx, view, dst, k.recv, src, k.send)
	}
	return coll.Barrier(ctx, view)
}

// apply does k for all groups of t in the reference.
func (p *program) apply(t *siblings, k *call) {
	for _, members := range t.groups {
		k.rooted(len(members)).apply(p.want, members)
	}
}

// drawFor draws a call for t. Its root is one rank in each group.
func (p *program) drawFor(t *siblings, slots int, floats bool) (*call, error) {
	k := p.draw(slots, floats)
	p.note("%v by %v", k, t.groups)
	if k.reduces() && k.typ.Float() {
		for _, members := range t.groups {
			if err := p.fillFloats(members, k.rooted(len(members))); err != nil {
				return nil, err
			}
		}
	}
	p.apply(t, k)
	if t.c == nil {
		return k, nil
	}
	return k.in(t), nil
}

func (p *program) calls() error {
	for range 1 + p.all.IntN(4) {
		t := p.drawSiblings()
		k, err := p.drawFor(t, numSlots, true)
		if err != nil {
			return err
		}
		if t.c == nil {
			continue
		}
		if err := p.do(t, t.c, k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
		if err := p.check(); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	return nil
}

// queued queues calls of several communicators on one stream.
func (p *program) queued() error {
	for range 1 + p.all.IntN(6) {
		t := p.drawSiblings()
		k, err := p.drawFor(t, numSlots, false)
		if err != nil {
			return err
		}
		if t.c == nil {
			continue
		}
		if err := p.do(t, t.c.On(p.stream), k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	return p.stream.Sync(p.ctx)
}

// grouped makes a group, blocking or on a stream.
func (p *program) grouped() error {
	t, onStream := p.drawSiblings(), p.all.IntN(3) == 0
	p.note("group, on a stream: %v", onStream)
	var ks []*call
	for range p.all.IntN(5) {
		k, err := p.drawFor(t, numSlots, false)
		if err != nil {
			return err
		}
		ks = append(ks, k)
	}
	if t.c == nil {
		return nil
	}
	view := t.c
	if onStream {
		view = t.c.On(p.stream)
	}
	err := ubcoll.Group(p.ctx, view, func(g *ubcoll.Comm) error {
		for _, k := range ks {
			if err := p.do(t, g, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.stream.Sync(p.ctx)
}
