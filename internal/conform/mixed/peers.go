package mixed

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Operations of random programs between two ranks.

// transfer moves bytes from one rank of a communicator to another, or to itself.
type transfer struct {
	from, to int
	src, dst place
	typ      dtype.Type
}

// transfers draws what is moved in each group of t, from one slot to another. Destinations do not overlap.
func (m *program) transfers(t *siblings, src, dst int) (all [][]transfer) {
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
func (m *program) messages() error {
	t := m.drawSiblings()
	src := m.all.IntN(numSlots)
	dst := (src + 1 + m.all.IntN(numSlots-1)) % numSlots
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
	var g p2p.Exchange
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

func (m *program) shift(t *siblings, src, dst int) error {
	n, by := m.all.IntN(m.room+1), 1+m.all.IntN(m.n)
	room := n + m.all.IntN(m.room-n+1) // a receive on the host may have more room
	if m.dev != ubcoll.Host {
		room = n
	}
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
	got, err := p2p.SendRecv(m.ctx, t.c, (t.rank-by%size+size)%size, m.slots[dst].vec.Slice(0, room),
		(t.rank+by)%size, m.slots[src].vec.Slice(0, n))
	if err == nil && got != n {
		err = fmt.Errorf("received %d bytes, not %d", got, n)
	}
	return err
}

// row sends up to 16 messages in a row from one rank of each group to another.
func (m *program) row(t *siblings, src, dst int) error {
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

// window makes a window, puts and gets through it, and closes it.
func (m *program) window() error {
	t, own := m.drawSiblings(), m.all.IntN(ours)
	other := (own + 1 + m.all.IntN(numSlots-1)) % numSlots
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
	if signals { // each rank tells the ranks that it puts to
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
	// No rank may write what others still put from, or get what they have not put yet.
	if err := testkit.InOrder(
		func() error { return w.Flush(m.ctx) },
		func() error { return coll.Barrier(m.ctx, t.c) }); err != nil {
		return err
	}
	for _, x := range gets[t.me] {
		if x.to == t.rank {
			if err := w.Get(m.ctx, x.from, m.vec(x.dst, dtype.Uint8), x.src.at); err != nil {
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
func (m *program) channel() error {
	t, s := m.drawSiblings(), m.all.IntN(ours)
	half := m.room / 2
	n, a, b, how := m.all.IntN(half/4), m.all.IntN(64), m.all.IntN(64), m.all.IntN(3)
	from, to := m.all.IntN(half-n+1), half+m.all.IntN(half-n+1)
	// Packets arrive at the end of the memory, in bytes that nobody can predict; later steps overwrite them.
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
	case 0: // once the peer is there, whose previous step may have written it
		err = testkit.InOrder(
			func() error { return ch.Signal(m.ctx) },
			func() error { return ch.Wait(m.ctx) },
			func() error { return ch.Get(m.ctx, to, from, n) },
			func() error { return ch.Signal(m.ctx) },
			func() error { return ch.Wait(m.ctx) })
	case 1:
		err = testkit.InOrder(
			func() error { return ch.Put(m.ctx, to, from, n) },
			func() error { return ch.Flush(m.ctx) },
			func() error { return ch.Signal(m.ctx) })
		if m.dev != ubcoll.Host { // only the host's signals can be polled
			err = errors.Join(err, ch.Wait(m.ctx))
			break
		}
		for got := false; err == nil && !got; {
			got, err = ch.Poll()
			runtime.Gosched()
		}
	default:
		err = testkit.InOrder(
			func() error { return ch.PutPackets(m.ctx, packets, from, n, width) },
			func() error { return ch.GetPackets(m.ctx, to, packets, n, width) },
			func() error { return ch.Signal(m.ctx) },
			func() error { return ch.Wait(m.ctx) },
			func() error { return m.write(s, packets, m.room-packets) })
	}
	return errors.Join(err, ch.Close(), m.expect("a put to a closed channel", t.c, ch.Put(m.ctx, 0, 0, 1), ubcoll.ErrClosed), r.Close())
}
