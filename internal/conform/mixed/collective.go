package mixed

import (
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
)

// draw returns a random call. Reductions of floats are drawn only if floats says that their sources can be filled
// first.
func (m *program) draw(slots int, floats bool) *call {
	k := &call{kind: operations[m.all.IntN(len(operations))], typ: dtype.Type(1 + m.all.IntN(int(dtype.Bool))),
		red: reductions[m.all.IntN(len(reductions))], root: m.all.IntN(64), inPlace: m.all.IntN(3) == 0}
	if k.reduces() && !floats && k.typ.Float() {
		k.typ = []dtype.Type{dtype.Int8, dtype.Uint16, dtype.Int32, dtype.Uint64}[m.all.IntN(4)]
	}
	if k.typ == dtype.Bool {
		k.red = []string{"min", "max"}[m.all.IntN(2)]
	}
	size := k.typ.Size()
	most := (m.room - 64) / size / m.n
	length := func() int {
		switch m.all.IntN(8) {
		case 0:
			return 0
		case 1, 2:
			return m.all.IntN(min(most, 9) + 1)
		case 3:
			return most
		}
		return m.all.IntN(most + 1)
	}
	k.count = length()
	k.src = place{slot: m.all.IntN(slots), at: m.all.IntN(64/size) * size}
	k.dst = place{slot: (k.src.slot + 1 + m.all.IntN(slots-1)) % slots, at: m.all.IntN(64/size) * size}
	for range m.n {
		k.factors = append(k.factors, []float64{-2, -1, 0, 0.5, 1, 2, 3}[m.all.IntN(7)])
		row, same := make([]int, m.n), length()
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

// rooted returns k for a communicator of n ranks.
func (k *call) rooted(n int) *call {
	c := *k
	c.root = k.root % n
	return &c
}

// in returns k for this rank's communicator of t, with this rank's counts.
func (k *call) in(t *siblings) *call {
	n := len(t.members())
	c := k.rooted(n)
	c.send, c.recv = append([]int(nil), k.counts[t.rank][:n]...), due(k.counts, n, t.rank)
	return c
}

func (k *call) String() string {
	s := fmt.Sprintf("%s of %d %v, root %d, in place %v, from slot %d+%d to %d+%d", k.kind, k.count, k.typ, k.root, k.inPlace,
		k.src.slot, k.src.at, k.dst.slot, k.dst.at)
	if k.reduces() {
		s += ", " + k.red
	}
	if k.vectors() {
		s += fmt.Sprintf(", %v", k.counts)
	}
	return s
}

func (m *program) vec(p place, t dtype.Type) ubcoll.Vec {
	if p.slot < 0 {
		return ubcoll.Vec{}
	}
	return m.slots[p.slot].vec.Slice(p.at, p.at+p.n).As(t)
}

// do makes the call on a view of t's communicator.
func (m *program) do(t *siblings, view *ubcoll.Comm, k *call) error {
	n := len(t.members())
	srcAt, dstAt := k.places(n, t.rank)
	return m.call(t, view, k, m.vec(dstAt, k.typ), m.vec(srcAt, k.typ), k.root)
}

func (m *program) call(t *siblings, view *ubcoll.Comm, k *call, dst, src ubcoll.Vec, root int) error {
	ctx := m.ctx
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
func (m *program) apply(t *siblings, k *call) {
	for _, members := range t.groups {
		k.rooted(len(members)).apply(m.want, members)
	}
}

// drawFor draws a call for t. Its root is one rank in each group.
func (m *program) drawFor(t *siblings, slots int, floats bool) (*call, error) {
	k := m.draw(slots, floats)
	m.note("%v by %v", k, t.groups)
	if k.reduces() && k.typ.Float() {
		for _, members := range t.groups {
			if err := m.fillFloats(members, k.rooted(len(members))); err != nil {
				return nil, err
			}
		}
	}
	m.apply(t, k)
	if t.c == nil {
		return k, nil
	}
	return k.in(t), nil
}

func (m *program) calls() error {
	for range 1 + m.all.IntN(4) {
		t := m.drawSiblings()
		k, err := m.drawFor(t, numSlots, true)
		if err != nil {
			return err
		}
		if t.c == nil {
			continue
		}
		if err := m.do(t, t.c, k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
		if err := m.check(); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	return nil
}

// queued queues calls of several communicators on one stream.
func (m *program) queued() error {
	for range 1 + m.all.IntN(6) {
		t := m.drawSiblings()
		k, err := m.drawFor(t, numSlots, false)
		if err != nil {
			return err
		}
		if t.c == nil {
			continue
		}
		if err := m.do(t, t.c.On(m.stream), k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	return m.stream.Sync(m.ctx)
}

// grouped makes a group, blocking or on a stream.
func (m *program) grouped() error {
	t, onStream := m.drawSiblings(), m.all.IntN(3) == 0
	m.note("group, on a stream: %v", onStream)
	var ks []*call
	for range m.all.IntN(5) {
		k, err := m.drawFor(t, numSlots, false)
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
		view = t.c.On(m.stream)
	}
	err := ubcoll.Group(m.ctx, view, func(g *ubcoll.Comm) error {
		for _, k := range ks {
			if err := m.do(t, g, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.stream.Sync(m.ctx)
}
