package jobtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/p2p"
)

// What random programs do between two ranks, and what they do wrong.

// transfer moves bytes from a rank of a communicator to another, or to itself.
type transfer struct {
	from, to int
	src, dst place
	typ      dtype.Type
}

// transfers draws what is moved in each group of t, from one slot to another; nothing overlaps where it arrives.
func (m *mixed) transfers(t *team, src, dst int) (all [][]transfer) {
	for _, members := range t.groups {
		var list []transfer
		used := make([]int, len(members))
		for range m.all.IntN(3*len(members) + 1) {
			x := transfer{from: m.all.IntN(len(members)), to: m.all.IntN(len(members)),
				typ: []dtype.Type{dtype.Uint8, dtype.Int16, dtype.Float32, dtype.Float64}[m.all.IntN(4)]}
			most := m.room - used[x.to]
			n := m.all.IntN(min(most, m.room/(1+m.all.IntN(8)))+1) &^ 7
			x.src = place{src, m.all.IntN(m.room-n+1) &^ 7, n}
			x.dst = place{dst, used[x.to], n}
			used[x.to] += n
			list = append(list, x)
			copy(m.want.of(members[x.to], x.dst), m.want.of(members[x.from], x.src))
		}
		all = append(all, list)
	}
	m.note("%v of %v", all, t.groups)
	return all
}

// messages sends and receives, as a group or as a request, or shifts around the ring of ranks.
func (m *mixed) messages() error {
	t := m.team()
	src := m.all.IntN(mixedSlots)
	dst := (src + 1 + m.all.IntN(mixedSlots-1)) % mixedSlots
	switch m.all.IntN(6) {
	case 0:
		return m.shift(t, src, dst)
	case 1:
		return m.row(t, src, dst)
	}
	lists, start := m.transfers(t, src, dst), m.mine.IntN(2) == 0
	if t.c == nil {
		return nil
	}
	var g p2p.Group
	var lens []int
	for _, x := range lists[t.me] {
		if x.from == t.rank {
			g.Send(x.to, m.vec(x.src, x.typ))
		}
		if x.to == t.rank {
			g.Recv(x.from, m.vec(x.dst, x.typ))
			lens = append(lens, x.dst.n/x.typ.Size())
		}
	}
	var err error
	if start {
		var r *p2p.Request
		if r, err = g.Start(m.ctx, t.c); err == nil {
			err = r.Wait(m.ctx)
		}
	} else {
		err = g.Do(m.ctx, t.c)
	}
	if err == nil && !slices.Equal(g.Received(), lens) {
		err = fmt.Errorf("received %v, not %v", g.Received(), lens)
	}
	return err
}

func (m *mixed) shift(t *team, src, dst int) error {
	n, by := m.all.IntN(m.room+1), 1+m.all.IntN(m.n)
	room := n + m.all.IntN(m.room-n+1) // a receive may have more
	m.note("shift of %d by %d", n, by)
	for _, members := range t.groups {
		for r, w := range members {
			copy(m.want[members[(r+by)%len(members)]][dst], m.want[w][src][:n])
		}
	}
	if t.c == nil {
		return nil
	}
	size := len(t.members())
	got, err := p2p.SendRecv(m.ctx, t.c, (t.rank+by)%size, m.slots[src].vec.Slice(0, n),
		(t.rank-by%size+size)%size, m.slots[dst].vec.Slice(0, room))
	if err == nil && got != n {
		err = fmt.Errorf("received %d bytes, not %d", got, n)
	}
	return err
}

// row sends up to 16 messages from one rank of each group to another, one after the other.
func (m *mixed) row(t *team, src, dst int) error {
	from, to := m.all.IntN(64), m.all.IntN(64)
	var lens []int
	for left := m.room; len(lens) < 16; left -= lens[len(lens)-1] {
		lens = append(lens, m.all.IntN(min(left, m.room/(1+m.all.IntN(16)))+1))
	}
	m.note("messages of %v bytes from %d to %d", lens, from, to)
	for _, members := range t.groups {
		if a, b := from%len(members), to%len(members); a != b {
			copy(m.want[members[b]][dst][:sumOfInts(lens)], m.want[members[a]][src])
		}
	}
	if t.c == nil {
		return nil
	}
	a, b, at := from%len(t.members()), to%len(t.members()), 0
	for _, n := range lens {
		switch {
		case a == b:
		case t.rank == a:
			if err := p2p.Send(m.ctx, t.c, b, m.slots[src].vec.Slice(at, at+n)); err != nil {
				return err
			}
		case t.rank == b:
			got, err := p2p.Recv(m.ctx, t.c, a, m.slots[dst].vec.Slice(at, at+n))
			if err == nil && got != n {
				err = fmt.Errorf("received %d bytes, not %d", got, n)
			}
			if err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// window makes one, puts and gets through it, and closes it.
func (m *mixed) window() error {
	t, own := m.team(), m.all.IntN(mixedOurs)
	other := (own + 1 + m.all.IntN(mixedSlots-1)) % mixedSlots
	puts := m.transfers(t, other, own)
	gets := m.transfers(t, own, other)
	signals := m.all.IntN(2) == 0
	if t.c == nil {
		return nil
	}
	w, err := t.c.RegisterWindow(m.ctx, m.slots[own].vec, ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	for _, x := range puts[t.me] {
		if x.from == t.rank {
			if err := w.Put(m.ctx, x.to, x.dst.at, m.vec(x.src, dtype.Uint8)); err != nil {
				return err
			}
		}
	}
	if signals { // each rank that puts to another tells it
		for p := range t.members() {
			if err := w.Signal(m.ctx, p); err != nil {
				return err
			}
		}
		for p := range t.members() {
			if err := w.Wait(m.ctx, p); err != nil {
				return err
			}
		}
	}
	// Nobody writes what others still put from, nor gets what they have not put.
	if err := errors.Join(w.Fence(m.ctx), coll.Barrier(m.ctx, t.c)); err != nil {
		return err
	}
	for _, x := range gets[t.me] {
		if x.to == t.rank {
			if err := w.Get(m.ctx, m.vec(x.dst, dtype.Uint8), x.from, x.src.at); err != nil {
				return err
			}
		}
	}
	errs := []error{
		m.expect("a put beyond the end", t.c, w.Put(m.ctx, 0, m.room, m.slots[other].vec.Slice(0, 1)), ubcoll.ErrArgument),
		m.expect("free of a window's memory", t.c, m.slots[own].buf.Free(), ubcoll.ErrInUse),
		coll.Barrier(m.ctx, t.c), w.Close(),
		m.expect("a put to a closed window", t.c, w.Put(m.ctx, 0, 0, m.slots[other].vec.Slice(0, 1)), ubcoll.ErrClosed)}
	return errors.Join(errs...)
}

// channel connects two ranks of each group, which put and get in both directions.
func (m *mixed) channel() error {
	t, s := m.team(), m.all.IntN(mixedOurs)
	half := m.room / 2
	n, a, b, how := m.all.IntN(half/4), m.all.IntN(64), m.all.IntN(64), m.all.IntN(3)
	from, to := m.all.IntN(half-n+1), half+m.all.IntN(half-n+1)
	// Packets come to the end of the memory, whose bytes nobody can foretell; they are what others write next.
	width := []p2p.PacketWidth{p2p.Packet8, p2p.Packet16}[m.all.IntN(2)]
	packets := m.room - 2*(n+int(width))&^15
	if to+n > packets {
		to = half
	}
	m.note("channel over slot %d, of %d bytes from %d to %d, way %d, %d", s, n, from, to, how, width)
	peers := func(size int) (int, int) { return a % size, (a%size + 1 + b%max(size-1, 1)) % size }
	for _, members := range t.groups {
		if x, y := peers(len(members)); x != y {
			p, q := m.want[members[x]][s], m.want[members[y]][s]
			copy(p[to:to+n], q[from:])
			copy(q[to:to+n], p[from:])
		}
	}
	if t.c == nil {
		return nil
	}
	x, y := peers(len(t.members()))
	if x == y || t.rank != x && t.rank != y {
		return nil
	}
	r, err := t.c.RegisterBuffer(m.slots[s].vec)
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(m.ctx, t.c, x+y-t.rank, r)
	if err != nil {
		return err
	}
	if err := m.expect("a put beyond the end", t.c, ch.Put(m.ctx, m.room-1, 0, 2), ubcoll.ErrArgument); err != nil {
		return err
	}
	switch how {
	case 0: // once the peer is there, whose step before may have written it
		err = errors.Join(ch.Signal(m.ctx), ch.Wait(m.ctx), ch.Get(m.ctx, to, from, n), ch.Signal(m.ctx), ch.Wait(m.ctx))
	case 1:
		err = errors.Join(ch.Put(m.ctx, to, from, n), ch.Flush(m.ctx), ch.Signal(m.ctx))
		for got := false; err == nil && !got; {
			got, err = ch.Poll()
			runtime.Gosched()
		}
	default:
		err = errors.Join(ch.PutPackets(m.ctx, packets, from, n, width), ch.GetPackets(m.ctx, to, packets, n, width),
			ch.Signal(m.ctx), ch.Wait(m.ctx))
		copy(m.slots[s].bytes[packets:], m.want[m.me][s][packets:])
	}
	return errors.Join(err, ch.Close(), m.expect("a put to a closed channel", t.c, ch.Put(m.ctx, 0, 0, 1), ubcoll.ErrClosed), r.Close())
}

// misuse makes a mistake whose error is known, on one rank of each group of a team: all of them have the error, memory
// stays as it is, and the next step shows that the communicator works.
func (m *mixed) misuse() error {
	t := m.team()
	odd, what := m.all.IntN(64), m.all.IntN(16)
	k := m.draw(mixedOurs, false)
	k.kind, k.inPlace = []string{"all_reduce", "reduce", "gather_v", "all_to_all_v", "scatter", "all_gather"}[m.all.IntN(6)], false
	k.count = max(k.count, 2)
	m.note("mistake %d of rank %d: %v by %v", what, odd, k, t.groups)
	if t.c == nil {
		return nil
	}
	size := len(t.members())
	odd %= size
	mine := t.rank == odd
	own := k.in(t)
	srcAt, dstAt := own.places(size, t.rank)
	dst, src := m.vec(dstAt, k.typ), m.vec(srcAt, k.typ)
	call := func() error { return m.call(t, t.c, own, dst, src, own.root) }
	wrong := func(text string, want error, err error) error { return m.expect(text, t.c, err, want) }
	other := func(text string, want error, f func() error) error { // f on the odd rank, the call on the others
		if size == 1 && errors.Is(want, ubcoll.ErrMismatch) {
			return nil
		}
		if mine {
			return wrong(text, want, f())
		}
		return wrong(text, want, call())
	}
	whole := func(s int) ubcoll.Vec { return m.slots[s].vec }
	switch what {
	case 0:
		return other("another count", ubcoll.ErrMismatch, func() error {
			return coll.AllReduce(m.ctx, t.c, whole(1).Slice(0, 1), whole(0).Slice(0, 1), ubcoll.Sum)
		})
	case 1:
		return other("another operation", ubcoll.ErrMismatch, func() error { return coll.Barrier(m.ctx, t.c) })
	case 2:
		return other("a bad root", ubcoll.ErrArgument, func() error {
			return coll.Broadcast(m.ctx, t.c, whole(0), []int{-1, size, 4096 + own.root}[m.mine.IntN(3)])
		})
	case 3:
		return other("an overlap", ubcoll.ErrArgument, func() error {
			return coll.AllReduce(m.ctx, t.c, whole(0).Slice(1, 101), whole(0).Slice(0, 100), ubcoll.Sum)
		})
	case 4:
		return other("a short destination", ubcoll.ErrArgument, func() error {
			return coll.AllGather(m.ctx, t.c, whole(0).Slice(0, size*10-1), whole(1).Slice(0, 10))
		})
	case 5:
		return other("the zero Op", ubcoll.ErrArgument, func() error {
			return coll.AllReduce(m.ctx, t.c, whole(0), whole(1), ubcoll.Op{})
		})
	case 6:
		return other("two types", ubcoll.ErrArgument, func() error {
			return coll.AllReduce(m.ctx, t.c, whole(0).Slice(0, 8).As(dtype.Int8), whole(1).Slice(0, 8), ubcoll.Sum)
		})
	case 7:
		return other("freed memory", ubcoll.ErrStale, func() error {
			b, err := ubcoll.Alloc[byte](t.c, ubcoll.Host, 100)
			if err != nil {
				return err
			}
			v := b.Vec()
			if err := b.Free(); err != nil {
				return err
			}
			return coll.AllReduce(m.ctx, t.c, v, v, ubcoll.Sum)
		})
	case 8:
		return other("a context that has ended", context.Canceled, func() error {
			ctx, cancel := context.WithCancel(m.ctx)
			cancel()
			return coll.AllReduce(ctx, t.c, whole(0), whole(1), ubcoll.Sum)
		})
	case 9:
		return other("too few counts", ubcoll.ErrArgument, func() error {
			return coll.AllGatherV(m.ctx, t.c, whole(0).Slice(0, size-1), make([]int, size-1), whole(1).Slice(0, 0))
		})
	case 10: // a pair of counts that differ
		own.kind = "all_to_all_v"
		first := slices.IndexFunc(due(k.counts, size, odd), func(n int) bool { return n > 0 })
		if first < 0 {
			return nil
		}
		srcAt, dstAt = own.places(size, t.rank)
		if mine {
			own.recv[first]--
			dstAt.n -= k.typ.Size()
		}
		return wrong("counts that differ", ubcoll.ErrMismatch, m.call(t, t.c, own, m.vec(dstAt, k.typ), m.vec(srcAt, k.typ), 0))
	case 11: // in a group, which ends there
		return other("a mistake in a group", ubcoll.ErrArgument, func() error {
			return ubcoll.Group(m.ctx, t.c, func(g *ubcoll.Comm) error {
				return coll.AllReduce(m.ctx, g, whole(0), whole(1), ubcoll.Op{})
			})
		})
	case 12:
		_, err := graph.Capture(m.ctx, t.c, func(c *ubcoll.Comm) error {
			v := ubcoll.Of(make([]int32, 10))
			return coll.AllReduce(m.ctx, c, v, v, ubcoll.Sum)
		})
		return wrong("a capture of Go memory", ubcoll.ErrArgument, err)
	case 13: // of everybody
		if m.slots[0].reg == nil {
			if err := m.register(0); err != nil {
				return err
			}
		}
		return wrong("free of registered memory", ubcoll.ErrInUse, m.slots[0].buf.Free())
	case 14:
		errs := []error{wrong("a message to nobody", ubcoll.ErrArgument, p2p.Send(m.ctx, t.c, size, whole(0)))}
		if size > 1 && (t.rank == 0 || t.rank == 1) { // of another type: more than what does not wait is an error for both
			n := []int{8, m.room}[odd&1] &^ 7
			to := p2p.Group{}
			if t.rank == 0 {
				to.Send(1, whole(0).Slice(0, n).As(dtype.Int32))
			} else {
				to.Recv(0, whole(1).Slice(0, n))
			}
			err := to.Do(m.ctx, t.c)
			if t.rank == 0 && n <= t.c.Engine().EagerLimit() {
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, wrong("a message of another type", ubcoll.ErrMismatch, err))
		}
		return errors.Join(errs...)
	default:
		return other("a negative count", ubcoll.ErrArgument, func() error {
			counts := make([]int, size)
			counts[m.mine.IntN(size)] = -1 - m.mine.IntN(9)
			return coll.AllToAllV(m.ctx, t.c, whole(0).Slice(0, 0), make([]int, size), whole(1).Slice(0, 0), counts)
		})
	}
}
