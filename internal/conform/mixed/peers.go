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
func (p *program) transfers(t *siblings, src, dst int) (all [][]transfer) {
	for _, members := range t.groups {
		var list []transfer
		used := make([]int, len(members))
		for range p.all.IntN(3*len(members) + 1) {
			x := transfer{from: p.all.IntN(len(members)), to: p.all.IntN(len(members)),
				typ: []dtype.Type{dtype.Uint8, dtype.Int16, dtype.Float32, dtype.Float64}[p.all.IntN(4)]}
			most := p.room - used[x.to]
			n := p.all.IntN(min(most, p.room/(1+p.all.IntN(8)))+1) &^ 7
			x.src = place{src, p.all.IntN(p.room-n+1) &^ 7, n}
			x.dst = place{dst, used[x.to], n}
			used[x.to] += n
			list = append(list, x)
			copy(p.want.of(members[x.to], x.dst), p.want.of(members[x.from], x.src))
		}
		all = append(all, list)
	}
	p.note("%v of %v", all, t.groups)
	return all
}

// messages sends and receives, as a group or as a request, or shifts around the ring of ranks.
func (p *program) messages() error {
	t := p.drawSiblings()
	src := p.all.IntN(numSlots)
	dst := (src + 1 + p.all.IntN(numSlots-1)) % numSlots
	switch p.all.IntN(6) {
	case 0:
		return p.shift(t, src, dst)
	case 1:
		return p.row(t, src, dst)
	}
	lists, start := p.transfers(t, src, dst), p.mine.IntN(2) == 0
	if t.c == nil {
		return nil
	}
	var g p2p.Exchange
	var lens []int
	for _, x := range lists[t.me] {
		if x.from == t.rank {
			g.Send(x.to, p.vec(x.src, x.typ))
		}
		if x.to == t.rank {
			g.Recv(x.from, p.vec(x.dst, x.typ))
			lens = append(lens, x.dst.n/x.typ.Size())
		}
	}
	var err error
	if start {
		var r *p2p.Request
		if r, err = g.Start(p.ctx, t.c); err == nil {
			err = r.Wait(p.ctx)
		}
	} else {
		err = g.Do(p.ctx, t.c)
	}
	if err == nil && !slices.Equal(g.Received(), lens) {
		err = fmt.Errorf("received %v, not %v", g.Received(), lens)
	}
	return err
}

func (p *program) shift(t *siblings, src, dst int) error {
	n, by := p.all.IntN(p.room+1), 1+p.all.IntN(p.n)
	room := n + p.all.IntN(p.room-n+1) // a receive on the host may have more room
	if p.dev != ubcoll.Host {
		room = n
	}
	p.note("shift of %d by %d", n, by)
	for _, members := range t.groups {
		for r, w := range members {
			copy(p.want[members[(r+by)%len(members)]][dst], p.want[w][src][:n])
		}
	}
	if t.c == nil {
		return nil
	}
	size := len(t.members())
	got, err := p2p.SendRecv(p.ctx, t.c, (t.rank-by%size+size)%size, p.slots[dst].vec.Slice(0, room),
		(t.rank+by)%size, p.slots[src].vec.Slice(0, n))
	if err == nil && got != n {
		err = fmt.Errorf("received %d bytes, not %d", got, n)
	}
	return err
}

// row sends up to 16 messages in a row from one rank of each group to another.
func (p *program) row(t *siblings, src, dst int) error {
	from, to := p.all.IntN(64), p.all.IntN(64)
	var lens []int
	for left := p.room; len(lens) < 16; left -= lens[len(lens)-1] {
		lens = append(lens, p.all.IntN(min(left, p.room/(1+p.all.IntN(16)))+1))
	}
	p.note("messages of %v bytes from %d to %d", lens, from, to)
	for _, members := range t.groups {
		if a, b := from%len(members), to%len(members); a != b {
			copy(p.want[members[b]][dst][:sumOfInts(lens)], p.want[members[a]][src])
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
			if err := p2p.Send(p.ctx, t.c, b, p.slots[src].vec.Slice(at, at+n)); err != nil {
				return err
			}
		case t.rank == b:
			got, err := p2p.Recv(p.ctx, t.c, a, p.slots[dst].vec.Slice(at, at+n))
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
func (p *program) window() error {
	t, own := p.drawSiblings(), p.all.IntN(ours)
	other := (own + 1 + p.all.IntN(numSlots-1)) % numSlots
	puts := p.transfers(t, other, own)
	gets := p.transfers(t, own, other)
	signals := p.all.IntN(2) == 0
	if t.c == nil {
		return nil
	}
	w, err := t.c.RegisterWindow(p.ctx, p.slots[own].vec, ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	for _, x := range puts[t.me] {
		if x.from == t.rank {
			if err := w.Put(p.ctx, x.to, x.dst.at, p.vec(x.src, dtype.Uint8)); err != nil {
				return err
			}
		}
	}
	if signals { // each rank tells the ranks that it puts to
		for peer := range t.members() {
			if err := w.Signal(p.ctx, peer); err != nil {
				return err
			}
		}
		for peer := range t.members() {
			if err := w.Wait(p.ctx, peer); err != nil {
				return err
			}
		}
	}
	// No rank may write what others still put from, or get what they have not put yet. Between hosts a put has landed after
	// Flush.
	if err := testkit.InOrder(
		func() error { return w.Flush(p.ctx) },
		func() error { return coll.Barrier(p.ctx, t.c) }); err != nil {
		return err
	}
	for _, x := range gets[t.me] {
		if x.to == t.rank {
			if err := w.Get(p.ctx, x.from, p.vec(x.dst, dtype.Uint8), x.src.at); err != nil {
				return err
			}
		}
	}
	errs := []error{
		p.expect("a put beyond the end", t.c, w.Put(p.ctx, 0, p.room, p.slots[other].vec.Slice(0, 1)), ubcoll.ErrArgument),
		p.expect("free of a window's memory", t.c, p.slots[own].buf.Free(), ubcoll.ErrInUse),
		coll.Barrier(p.ctx, t.c), w.Close(),
		p.expect("a put to a closed window", t.c, w.Put(p.ctx, 0, 0, p.slots[other].vec.Slice(0, 1)), ubcoll.ErrClosed)}
	return errors.Join(errs...)
}

// channel connects two ranks of each group, which put and get in both directions.
func (p *program) channel() error {
	t, s := p.drawSiblings(), p.all.IntN(ours)
	half := p.room / 2
	n, a, b, how := p.all.IntN(half/4), p.all.IntN(64), p.all.IntN(64), p.all.IntN(3)
	from, to := p.all.IntN(half-n+1), half+p.all.IntN(half-n+1)
	// Packets arrive at the end of the memory, in bytes that nobody can predict; later steps overwrite them.
	width := []p2p.PacketWidth{p2p.Packet8, p2p.Packet16}[p.all.IntN(2)]
	packets := p.room - 2*(n+int(width))&^15
	if to+n > packets {
		to = half
	}
	p.note("channel over slot %d, of %d bytes from %d to %d, way %d, %d", s, n, from, to, how, width)
	peers := func(size int) (int, int) { return a % size, (a%size + 1 + b%max(size-1, 1)) % size }
	for _, members := range t.groups {
		if x, y := peers(len(members)); x != y {
			mine, theirs := p.want[members[x]][s], p.want[members[y]][s]
			copy(mine[to:to+n], theirs[from:])
			copy(theirs[to:to+n], mine[from:])
		}
	}
	if t.c == nil {
		return nil
	}
	x, y := peers(len(t.members()))
	if x == y || t.rank != x && t.rank != y {
		return nil
	}
	r, err := t.c.RegisterBuffer(p.slots[s].vec)
	if err != nil {
		return err
	}
	ch, err := p2p.Connect(p.ctx, t.c, x+y-t.rank, r)
	if err != nil {
		return err
	}
	if err := p.expect("a put beyond the end", t.c, ch.Put(p.ctx, p.room-1, 0, 2), ubcoll.ErrArgument); err != nil {
		return err
	}
	switch how {
	case 0: // once the peer is there, whose previous step may have written it
		err = testkit.InOrder(
			func() error { return ch.Signal(p.ctx) },
			func() error { return ch.Wait(p.ctx) },
			func() error { return ch.Get(p.ctx, to, from, n) },
			func() error { return ch.Signal(p.ctx) },
			func() error { return ch.Wait(p.ctx) })
	case 1:
		err = testkit.InOrder(
			func() error { return ch.Put(p.ctx, to, from, n) },
			func() error { return ch.Flush(p.ctx) },
			func() error { return ch.Signal(p.ctx) })
		if p.dev != ubcoll.Host { // only the host's signals can be polled
			err = errors.Join(err, ch.Wait(p.ctx))
			break
		}
		for got := false; err == nil && !got; {
			got, err = ch.Poll()
			runtime.Gosched()
		}
	default:
		if p.dev != ubcoll.Host && t.c.Hostname(ch.Peer()) != t.c.Hostname(t.rank) { // there are no packets
			err = testkit.InOrder(
				func() error { return ch.PutWithSignal(p.ctx, to, from, n) },
				func() error { return ch.Wait(p.ctx) },
				func() error { return p.write(s, packets, p.room-packets) })
			break
		}
		err = testkit.InOrder(
			func() error { return ch.PutPackets(p.ctx, packets, from, n, width) },
			func() error { return ch.GetPackets(p.ctx, to, packets, n, width) },
			func() error { return ch.Signal(p.ctx) },
			func() error { return ch.Wait(p.ctx) },
			func() error { return p.write(s, packets, p.room-packets) })
	}
	return errors.Join(err, ch.Close(), p.expect("a put to a closed channel", t.c, ch.Put(p.ctx, 0, 0, 1), ubcoll.ErrClosed), r.Close())
}
