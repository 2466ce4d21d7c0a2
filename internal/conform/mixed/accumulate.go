package mixed

import (
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// accumulate lets all ranks of each group combine a part of a slot with the same place of one rank's other slot, at once.
func (p *program) accumulate() error {
	t, own := p.drawSiblings(), p.all.IntN(ours)
	if p.dev != ubcoll.Host {
		return nil
	}
	other := (own + 1 + p.all.IntN(numSlots-1)) % numSlots
	typ := []dtype.Type{dtype.Uint8, dtype.Uint16, dtype.Uint32, dtype.Uint64}[p.all.IntN(4)]
	op := []ubcoll.Op{ubcoll.Sum, ubcoll.Min, ubcoll.Max}[p.all.IntN(3)]
	size := typ.Size()
	n := p.all.IntN(p.room/(1+p.all.IntN(16))+1) / size * size
	from, at := p.all.IntN(p.room-n+1)/size*size, p.all.IntN(p.room-n+1)/size*size
	target, pieces := p.all.IntN(64), 1+p.mine.IntN(3)
	p.note("accumulate %v of %v, %d bytes from %d of slot %d to %d of slot %d of rank %d of %v", op, typ, n, from, other, at,
		own, target, t.groups)
	for _, members := range t.groups {
		dst := p.want[members[target%len(members)]][own][at : at+n]
		for _, w := range members {
			accumulated(op, typ, dst, p.want[w][other][from:from+n])
		}
	}
	if t.c == nil {
		return nil
	}
	w, err := t.c.RegisterWindow(p.ctx, p.slots[own].vec, ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	to := target % len(t.members())
	for done := 0; done < n; {
		k := min((n/pieces)/size*size+size, n-done)
		src := p.vec(place{other, from + done, k}, typ)
		if err := w.Accumulate(p.ctx, to, at+done, src, op); err != nil {
			return err
		}
		done += k
	}
	return errors.Join(p.expect("an accumulate beyond the end", t.c,
		w.Accumulate(p.ctx, to, p.room, p.vec(place{other, 0, size}, typ), op), ubcoll.ErrArgument),
		p.expect("a product", t.c, w.Accumulate(p.ctx, to, 0, p.vec(place{other, 0, size}, typ), ubcoll.Prod),
			ubcoll.ErrArgument),
		w.Flush(p.ctx), coll.Barrier(p.ctx, t.c), w.Close())
}

// accumulated combines unsigned integers.
func accumulated(op ubcoll.Op, t dtype.Type, dst, src []byte) {
	for i := range len(dst) / t.Size() {
		x, y := element(t, dst, i), element(t, src, i)
		switch op {
		case ubcoll.Sum:
			x += y
		case ubcoll.Min:
			x = min(x, y)
		case ubcoll.Max:
			x = max(x, y)
		}
		setElement(t, dst, i, x)
	}
}

// atomics lets all ranks of each group add to a word of one rank, and each swap a word of its own there.
func (p *program) atomics() error {
	t, own := p.drawSiblings(), p.all.IntN(ours)
	if p.dev != ubcoll.Host {
		return nil
	}
	target, at, times := p.all.IntN(64), 8*p.all.IntN(p.room/8-p.n-1), 1+p.all.IntN(5)
	add := p.all.Uint64()
	p.note("%d atomics from %d of slot %d of rank %d of %v", times, at, own, target, t.groups)
	type memory struct {
		word func(i int) uint64
		set  func(i int, x uint64)
	}
	in := func(members []int) memory {
		b := p.want[members[target%len(members)]][own][at:]
		return memory{func(i int) uint64 { return element(dtype.Uint64, b, i) },
			func(i int, x uint64) { setElement(dtype.Uint64, b, i, x) }}
	}
	var before uint64 // this rank's word
	if t.c != nil {
		before = in(t.members()).word(1 + t.rank)
	}
	for _, members := range t.groups {
		m := in(members)
		for r := range members {
			m.set(0, m.word(0)+uint64(times)*(add+uint64(r)))
			m.set(1+r, m.word(1+r)+uint64(times))
		}
	}
	if t.c == nil {
		return nil
	}
	w, err := t.c.RegisterWindow(p.ctx, p.slots[own].vec, ubcoll.WindowAtomic)
	if err != nil {
		return err
	}
	to := target % len(t.members())
	for k := range uint64(times) {
		if _, err := w.FetchAdd(p.ctx, to, at, add+uint64(t.rank)); err != nil {
			return err
		}
		mine := at + 8*(1+t.rank)
		for _, old := range []uint64{before + k + 1, before + k} { // the first is another value
			if was, err := w.CompareAndSwap(p.ctx, to, mine, old, before+k+1); err != nil || was != before+k {
				return fmt.Errorf("compare_and_swap of %d returned %d, %w", before+k, was, err)
			}
		}
	}
	return errors.Join(p.expect("an unaligned word", t.c, testkit.ErrOf(w.FetchAdd(p.ctx, to, at+4, 1)), ubcoll.ErrArgument),
		coll.Barrier(p.ctx, t.c), w.Close())
}
