package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
)

// Mixed runs random programs of everything that works on host memory, JOBTEST_PROGRAMS of them: see RandomPrograms.
func Mixed(ctx context.Context, c *ubcoll.Comm) error {
	programs := 30
	if s, err := strconv.Atoi(os.Getenv("JOBTEST_PROGRAMS")); err == nil {
		programs = s
	}
	return RandomPrograms(Seed(), programs)(ctx, c)
}

// RandomPrograms is so many random programs, the same on all ranks: collectives, blocking and on streams, in groups and
// in graphs whose counts change between launches, messages, windows, channels, communicators and memory that come and
// go, and misuse whose error is known beforehand. Each rank computes what all memory must hold, naively, and compares all
// of its own with that, to the byte.
func RandomPrograms(seed uint64, programs int) Suite {
	return func(ctx context.Context, c *ubcoll.Comm) error {
		for k := range programs {
			m := newMixed(ctx, c, seed, uint64(k))
			if err := m.program(); err != nil {
				for _, t := range m.teams { // but the world, which is for whoever opened it
					if t.c != nil && t.c != c {
						t.c.Abort(err)
						t.c.Close()
					}
				}
				return fmt.Errorf("rank %d of %d, seed %d, program %d, after\n\t%s\n%w", c.Rank(), c.Size(), seed, k,
					strings.Join(m.trail, "\n\t"), err)
			}
		}
		return nil
	}
}

const (
	mixedOurs  = 2 // slots of Alloc, which graphs, windows and channels can use
	mixedSlots = 4 // the others are any memory
)

// mixed is one program as one rank sees it.
type mixed struct {
	ctx       context.Context
	world     *ubcoll.Comm
	n, me     int
	all, mine *rand.Rand // the same on all ranks, and this rank's
	room      int        // bytes of a slot
	want      memories
	slots     [mixedSlots]mixedSlot
	stream    *ubcoll.Stream
	teams     []*team
	graphs    []*mixedGraph
	trail     []string // the steps, for an error
}

// mixedSlot is this rank's memory of a slot.
type mixedSlot struct {
	buf   *ubcoll.Buffer[byte] // of Alloc, or nil
	reg   *ubcoll.Registration // or nil
	bytes []byte
	vec   ubcoll.Vec
	free  func() error // of other memory
}

// team is a communicator of some of the ranks, beside others that were made by the same Split.
type team struct {
	c      *ubcoll.Comm // nil: this rank is in none of them
	groups [][]int      // world ranks, in rank order
	me     int          // which of them is this rank's
	rank   int
}

// members is this rank's group.
func (t *team) members() []int { return t.groups[t.me] }

func newMixed(ctx context.Context, c *ubcoll.Comm, seed, k uint64) *mixed {
	m := &mixed{ctx: ctx, world: c, n: c.Size(), me: c.Rank(), all: rand.New(rand.NewPCG(seed, k<<16)),
		mine: rand.New(rand.NewPCG(seed, k<<16+uint64(c.Rank())+1))}
	switch x := m.all.IntN(100); {
	case x < 70: // mostly eager
		m.room = 1 << 10
	case x < 97:
		m.room = 12 << 10
	default: // several chunks, and rounds of staging memory
		m.room = 300 << 10
	}
	return m
}

func (m *mixed) program() (err error) {
	if m.stream, err = ubcoll.NewStream(ubcoll.Host); err != nil {
		return err
	}
	everybody := make([]int, m.n)
	m.want = make(memories, m.n)
	for r := range m.n {
		everybody[r] = r
		m.want[r] = make([][]byte, mixedSlots)
		for s := range m.want[r] {
			m.want[r][s] = make([]byte, m.room)
		}
	}
	m.teams = []*team{{c: m.world, groups: [][]int{everybody}, rank: m.me}}
	for s := range m.slots {
		if err := m.allocate(s); err != nil {
			return err
		}
		m.fill(s)
	}
	for range 4 + m.all.IntN(8) {
		if err := m.step(); err != nil {
			return err
		}
		if err := m.check(); err != nil {
			return err
		}
		for _, t := range m.teams {
			if t.c != nil && t.c.Err() != nil {
				return fmt.Errorf("a communicator of %v is broken: %w", t.groups, t.c.Err())
			}
		}
	}
	return m.end()
}

// end gives everything back.
func (m *mixed) end() error {
	var errs []error
	for len(m.graphs) > 0 {
		errs = append(errs, m.closeGraph(0))
	}
	for len(m.teams) > 1 {
		errs = append(errs, m.closeTeam(1))
	}
	// Nobody takes memory away while a peer may still be in the program's last step.
	errs = append(errs, coll.Barrier(m.ctx, m.world), m.stream.Close())
	for s := range m.slots {
		errs = append(errs, m.release(s))
	}
	return errors.Join(errs...)
}

func (m *mixed) note(format string, args ...any) {
	m.trail = append(m.trail, fmt.Sprintf(format, args...))
}

func (m *mixed) step() error {
	steps := []struct {
		weight int
		name   string
		do     func() error
	}{
		{24, "calls", m.calls}, {8, "on a stream", m.queued}, {8, "a group", m.grouped}, {8, "a capture", m.capture},
		{14, "a launch", m.launch}, {3, "a graph's end", func() error { return m.closeGraph(m.all.IntN(max(len(m.graphs), 1))) }},
		{8, "messages", m.messages}, {6, "a window", m.window}, {6, "a channel", m.channel}, {8, "memory", m.churn},
		{5, "a split", m.split}, {2, "a communicator's end", func() error { return m.closeTeam(1 + m.all.IntN(max(len(m.teams)-1, 1))) }},
		{16, "misuse", m.misuse},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	at := m.all.IntN(total)
	for _, s := range steps {
		if at -= s.weight; at < 0 {
			m.note("%s", s.name)
			return s.do()
		}
	}
	return nil
}

// check compares this rank's memory with what it should be.
func (m *mixed) check() error {
	for s := range m.slots {
		got, want := m.slots[s].bytes, m.want[m.me][s]
		if bytes.Equal(got, want) {
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("byte %d of slot %d is %#x, not %#x (%s)", i, s, got[i], want[i], m.world.LastOp().Explain())
			}
		}
	}
	return nil
}

// allocate makes the memory of a slot.
func (m *mixed) allocate(s int) error {
	k := &m.slots[s]
	*k = mixedSlot{}
	how := alloced
	if s >= mixedOurs {
		how = where(m.mine.IntN(int(numWhere)))
	}
	if how == goSlice || how == adopted {
		h, err := hold[byte](m.world, how, m.room)
		k.bytes, k.vec, k.free = h.slice, h.vec, h.free
		return err
	}
	b, err := ubcoll.Alloc[byte](m.world, ubcoll.Host, m.room)
	if err != nil {
		return err
	}
	k.buf, k.bytes, k.vec = b, b.Slice(), b.Vec()
	if how == registered || m.mine.IntN(2) == 0 {
		return m.register(s)
	}
	return nil
}

func (m *mixed) register(s int) (err error) {
	m.slots[s].reg, err = m.world.RegisterBuffer(m.slots[s].vec)
	return err
}

func (m *mixed) deregister(s int) error {
	r := m.slots[s].reg
	m.slots[s].reg = nil
	if r == nil {
		return nil
	}
	return r.Close()
}

func (m *mixed) release(s int) error {
	err := m.deregister(s)
	if m.slots[s].buf != nil {
		return errors.Join(err, m.slots[s].buf.Free())
	}
	return errors.Join(err, m.slots[s].free())
}

// random is the i-th of the random words that a seed stands for.
func random(seed uint64, i int) uint64 {
	x := seed + uint64(i)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fill gives a slot of all ranks new bytes.
func (m *mixed) fill(s int) {
	for r := range m.n {
		seed := m.all.Uint64()
		for i := range m.want[r][s] {
			m.want[r][s][i] = byte(random(seed, i>>3) >> (8 * (i & 7)))
		}
	}
	copy(m.slots[s].bytes, m.want[m.me][s])
}

// fillFloats gives the sources of k small whole numbers, all of whose results are exact in any order.
func (m *mixed) fillFloats(t *team, k *mixedCall) {
	seed := m.all.Uint64()
	for _, members := range t.groups {
		for r, w := range members {
			src, _ := k.places(len(members), r)
			b := m.want.of(w, src)
			for i := range src.n / k.typ.Size() {
				h := random(seed+uint64(w)<<40, i)
				x := float64(h%31) - 15
				if k.red == "prod" {
					x = float64(1+h%2) * float64(1-int(h>>8%2)*2)
				}
				setElement(k.typ, b, i, encodeFloat(k.typ, x))
			}
			if w == m.me && src.slot >= 0 {
				copy(m.slots[src.slot].bytes[src.at:][:src.n], b)
			}
		}
	}
}

func (m *mixed) team() *team { return m.teams[m.all.IntN(len(m.teams))] }

// draw is a random call. Sources of floats are filled first if that is possible now; else such reductions are left out.
func (m *mixed) draw(slots int, floats bool) *mixedCall {
	k := &mixedCall{kind: mixedKinds[m.all.IntN(len(mixedKinds))], typ: dtype.Type(1 + m.all.IntN(int(dtype.Float64))),
		red: mixedReds[m.all.IntN(len(mixedReds))], root: m.all.IntN(64), inPlace: m.all.IntN(3) == 0}
	if k.reduces() && !floats && k.typ.Float() {
		k.typ = []dtype.Type{dtype.Int8, dtype.Uint16, dtype.Int32, dtype.Uint64}[m.all.IntN(4)]
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

// in is k for a communicator of n ranks, of which this one is r: its counts and its root.
func (k *mixedCall) in(t *team) *mixedCall {
	n := len(t.members())
	c := *k
	c.root = k.root % n
	c.send, c.recv = append([]int(nil), k.counts[t.rank][:n]...), due(k.counts, n, t.rank)
	return &c
}

func (k *mixedCall) String() string {
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

func (m *mixed) vec(p place, t dtype.Type) ubcoll.Vec {
	if p.slot < 0 {
		return ubcoll.Vec{}
	}
	return m.slots[p.slot].vec.Slice(p.at, p.at+p.n).As(t)
}

// do makes the call on a view of t's communicator.
func (m *mixed) do(t *team, view *ubcoll.Comm, k *mixedCall) error {
	n := len(t.members())
	srcAt, dstAt := k.places(n, t.rank)
	return m.call(t, view, k, m.vec(dstAt, k.typ), m.vec(srcAt, k.typ), k.root)
}

func (m *mixed) call(t *team, view *ubcoll.Comm, k *mixedCall, dst, src ubcoll.Vec, root int) error {
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

// apply does k of all groups of t to the reference.
func (m *mixed) apply(t *team, k *mixedCall) {
	for _, members := range t.groups {
		c := *k
		c.root = k.root % len(members)
		c.apply(m.want, members)
	}
}

// drawFor is a call for t, whose root is one of each group's ranks.
func (m *mixed) drawFor(t *team, slots int, floats bool) *mixedCall {
	k := m.draw(slots, floats)
	m.note("%v by %v", k, t.groups)
	if k.reduces() && k.typ.Float() {
		for _, members := range t.groups {
			one := *k
			one.root = k.root % len(members)
			m.fillFloats(&team{groups: [][]int{members}}, &one)
		}
	}
	m.apply(t, k)
	if t.c == nil {
		return k
	}
	return k.in(t)
}

func (m *mixed) calls() error {
	for range 1 + m.all.IntN(4) {
		t := m.team()
		k := m.drawFor(t, mixedSlots, true)
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
func (m *mixed) queued() error {
	for range 1 + m.all.IntN(6) {
		t := m.team()
		k := m.drawFor(t, mixedSlots, false)
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
func (m *mixed) grouped() error {
	t, onStream := m.team(), m.all.IntN(3) == 0
	m.note("group, on a stream: %v", onStream)
	var ks []*mixedCall
	for range m.all.IntN(5) {
		ks = append(ks, m.drawFor(t, mixedSlots, false))
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
	return errors.Join(err, m.stream.Sync(m.ctx))
}

// mixedGraph is a graph of calls of a team, and what is known of them.
type mixedGraph struct {
	t        *team
	calls    []*mixedCall // as drawn, with the counts of all ranks
	own      []*mixedCall // this rank's, whose counts the graph reads
	g        *graph.Graph // nil if this rank is not in it
	onStream bool
}

func (m *mixed) capture() error {
	if len(m.graphs) == 3 {
		return m.launch()
	}
	g := &mixedGraph{t: m.team(), onStream: m.all.IntN(3) == 0}
	for range 1 + m.all.IntN(4) {
		k := m.draw(mixedOurs, false)
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

// recount draws other counts of an all-to-all, which fit into what was captured.
func (m *mixed) recount(g *mixedGraph, k *mixedCall) {
	counts := make([][]int, m.n)
	for s := range counts {
		counts[s] = make([]int, m.n)
		for d := range counts[s] {
			counts[s][d] = m.all.IntN(k.fit[s][d] + 1)
		}
	}
	if len(g.t.groups) == 1 && m.all.IntN(2) == 0 { // more for some pairs than at the capture, if there is room
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
func (m *mixed) launch() error {
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
		if t.c == nil {
			continue
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
		if err == nil {
			err = m.check()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *mixed) closeGraph(i int) error {
	if i >= len(m.graphs) {
		return nil
	}
	g := m.graphs[i]
	m.graphs = append(m.graphs[:i:i], m.graphs[i+1:]...)
	if g.g == nil {
		return nil
	}
	if err := g.g.Close(); err != nil {
		return err
	}
	return m.expect("launch of a closed graph", g.t.c, g.g.Launch(m.ctx), ubcoll.ErrClosed)
}

// expect is an error unless err is the sentinel, and c is as usable as before.
func (m *mixed) expect(what string, c *ubcoll.Comm, err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("%s: %v, not %w", what, err, want)
	}
	if c != nil && c.Err() != nil {
		return fmt.Errorf("%s broke the communicator: %w", what, c.Err())
	}
	return nil
}

// split makes communicators of another's ranks.
func (m *mixed) split() error {
	if len(m.teams) == 4 {
		return m.closeTeam(1 + m.all.IntN(3))
	}
	from := m.team()
	colors, keys := make([]int, m.n), make([]int, m.n)
	dup, most := m.all.IntN(3) == 0, 1+m.all.IntN(3)
	for r := range m.n {
		colors[r], keys[r] = m.all.IntN(most+1)-1, m.all.IntN(3)
		if dup {
			colors[r], keys[r] = 0, 0
		}
	}
	t := &team{me: -1}
	for _, members := range from.groups {
		for color := range most {
			var group []int
			for key := range 3 {
				for _, w := range members {
					if colors[w] == color && keys[w] == key {
						group = append(group, w)
					}
				}
			}
			for r, w := range group {
				if w == m.me {
					t.me, t.rank = len(t.groups), r
				}
			}
			if len(group) > 0 {
				t.groups = append(t.groups, group)
			}
		}
	}
	m.note("%v from %v, dup: %v", t.groups, from.groups, dup)
	if from.c != nil {
		var err error
		if dup {
			t.c, err = from.c.Dup(m.ctx)
		} else {
			t.c, err = from.c.Split(m.ctx, colors[m.me], keys[m.me])
		}
		if err != nil {
			return err
		}
		if (t.c != nil) != (t.me >= 0) {
			return fmt.Errorf("split gave %v, and this rank is in %v: %d", t.c, t.groups, t.me)
		}
		if t.c != nil && (t.c.Rank() != t.rank || t.c.Size() != len(t.members())) {
			return fmt.Errorf("split gave rank %d of %d, not %d of %v", t.c.Rank(), t.c.Size(), t.rank, t.members())
		}
	}
	if len(t.groups) > 0 {
		m.teams = append(m.teams, t)
	}
	return nil
}

// closeTeam ends communicators, and the graphs of them.
func (m *mixed) closeTeam(i int) error {
	if i >= len(m.teams) {
		return nil
	}
	t := m.teams[i]
	m.teams = append(m.teams[:i:i], m.teams[i+1:]...)
	var errs []error
	for j := 0; j < len(m.graphs); {
		if m.graphs[j].t != t {
			j++
			continue
		}
		errs = append(errs, m.closeGraph(j))
	}
	if t.c != nil {
		errs = append(errs, t.c.Close(), m.expect("a call on a closed communicator", nil, coll.Barrier(m.ctx, t.c), ubcoll.ErrClosed))
	}
	return errors.Join(errs...)
}

// churn takes memory away and makes other, or registers what there is, or no longer.
func (m *mixed) churn() error {
	s := m.all.IntN(mixedSlots)
	if s < mixedOurs && m.held() {
		if m.slots[s].reg != nil {
			return m.deregister(s)
		}
		return m.register(s)
	}
	if err := m.release(s); err != nil {
		return err
	}
	if k := &m.slots[s]; k.buf != nil {
		if err := m.expect("second free", nil, k.buf.Free(), ubcoll.ErrClosed); err != nil {
			return err
		}
	}
	err := m.allocate(s)
	m.fill(s)
	return err
}

// held reports whether a graph of this program may hold memory, on any rank.
func (m *mixed) held() bool { return len(m.graphs) > 0 }
