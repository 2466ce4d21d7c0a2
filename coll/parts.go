package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/schedule"
)

// parts is blocks where hosts pass on what they have from others: offsets count the elements of all hosts' parts. In an
// all-gather they are in the destination of this rank. What is passed on otherwise, or is combined first, is in memory
// of its own.
type parts struct {
	*blocks
	plan  schedule.Plan
	own   int // this host's part
	begin []int
	held  []byte
}

// newParts is the parts of an exchange by a way.
func (b *blocks) newParts(p schedule.Plan) *parts {
	a := &b.parts
	a.blocks = b
	a.begin = sized(a.begin, p.Hosts+1)
	p.Begins = a.begin
	me := p.Me
	for i := range p.Hosts {
		k := b.pieces(me, me, 0, 0)
		switch host := p.HostOf(i); {
		case b.perSource:
			k = b.pieces(host, me, 0, 0)
		default:
			k = b.pieces(me, host, 0, 0)
		}
		_, n := b.part(&k)
		a.begin[i+1] = a.begin[i] + n
	}
	a.plan, a.own = p, p.PartOf(me)
	switch total := a.begin[p.Hosts] * b.size; {
	case p.Way == schedule.GatherDoubling:
		lo, hi := a.begin[a.own], a.begin[a.own+1]
		for k := b.pieces(me, me, 0, hi-lo); k.next(); {
			b.copy(k.out(k.receiver()), k.in(k.sender()), k.n)
		}
	case cap(a.held) < total:
		a.held = make([]byte, total)
	}
	if a.passes() && p.Way == schedule.GatherTree {
		lo, hi := a.begin[a.own], a.begin[a.own+1]
		b.Fill(a.at(lo), p.Root, 0, hi-lo)
	}
	return a
}

// passes reports whether this host passes on what others send through it.
func (a *parts) passes() bool {
	p := &a.plan
	return a.own != 0 && a.own&1 == 0 && a.own+1 < p.Hosts
}

// at is where elements are that this host passes on.
func (a *parts) at(off int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(a.held)), off*a.size)
}

// each calls do for the elements of each part among n from off on: those of a host, n from off on of its own, with where they
// are among all.
func (a *parts) each(off, n int, do func(host, off, n, at int) bool) {
	for i := range a.plan.Hosts {
		lo, hi := max(off, a.begin[i]), min(off+n, a.begin[i+1])
		if lo < hi && !do(a.plan.HostOf(i), lo-a.begin[i], hi-lo, lo-off) {
			return
		}
	}
}

// Source implements team.Blocks.
func (a *parts) Source(_, off, n int) unsafe.Pointer {
	way := a.plan.Way
	switch {
	case way == schedule.GatherDoubling:
		if at, together := a.Destination(0, off, n); together == n {
			return at
		}
		return nil
	case way == schedule.GatherTree && a.passes(), way == schedule.ScatterTree && a.own > 0:
		return a.at(off)
	}
	var from unsafe.Pointer
	a.each(off, n, func(host, off, n, at int) bool {
		p := a.blocks.Source(a.sentTo(host), off, n)
		if at == 0 {
			from = p
		} else if p == nil || !behind(p, from, at*a.size) {
			from = nil
		}
		return from != nil
	})
	return from
}

// sentTo is for which host the part of a host is sent.
func (a *parts) sentTo(host int) int {
	if a.toRoot {
		return a.plan.Root
	}
	return host
}

// Fill implements team.Blocks.
func (a *parts) Fill(to unsafe.Pointer, _, off, n int) {
	a.each(off, n, func(host, off, n, at int) bool {
		to := unsafe.Add(to, at*a.size)
		if a.plan.Way != schedule.GatherDoubling {
			a.blocks.Fill(to, a.sentTo(host), off, n)
			return true
		}
		done := 0
		for k := a.pieces(host, a.plan.Me, off, n); k.next(); done += k.n * a.size {
			a.copy(unsafe.Add(to, done), k.out(k.receiver()), k.n)
		}
		return true
	})
}

// Destination implements team.Blocks.
func (a *parts) Destination(_, off, n int) (to unsafe.Pointer, together int) {
	way, lo, hi := a.plan.Way, a.begin[a.own], a.begin[a.own+1]
	switch {
	case way == schedule.ScatterTree && off >= lo && off+n <= hi && a.own&1 == 1:
		return a.blocks.Destination(a.plan.Root, off-lo, n) // nothing is passed on
	case way == schedule.ScatterHalving, way == schedule.ScatterTree, way == schedule.GatherTree && a.own > 0:
		return a.at(off), n
	}
	a.each(off, n, func(host, off, n, _ int) bool {
		p, k := a.blocks.Destination(host, off, n)
		if together == 0 {
			to = p
		} else if !behind(p, to, together*a.size) {
			return false
		}
		together += k
		return k == n
	})
	return to, together
}

// Take implements team.Blocks.
func (a *parts) Take(from unsafe.Pointer, _, off, n int) {
	way, host := a.plan.Way, -1 // whose parts are taken; -1: all
	switch {
	case way == schedule.ScatterHalving, way == schedule.ScatterTree:
		host = a.plan.Me
	case way == schedule.GatherTree && a.own > 0:
		return
	}
	a.each(off, n, func(h, off, n, at int) bool {
		switch {
		case host < 0:
			a.blocks.Take(unsafe.Add(from, at*a.size), h, off, n)
		case host == h && way == schedule.ScatterTree:
			a.blocks.Take(unsafe.Add(from, at*a.size), a.plan.Root, off, n)
		case host == h:
			a.blocks.Take(unsafe.Add(from, at*a.size), h, off, n)
		}
		return true
	})
}
