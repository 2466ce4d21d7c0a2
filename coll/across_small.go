package coll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Small collectives between hosts: each team's leader contributes what the other hosts need, to the messages by which the
// hosts agree, and makes the result of what all have contributed.

func offerToLeader(t *team.Team, w *team.Work) {
	if t.Size() > 1 {
		offerEager(t, w)
	}
}

// leavesOut reports whether hosts contribute only what others need: not if contributions are folded, or several hosts need
// different parts of combined data.
func leavesOut(h team.Hosts, f form) bool {
	return !f.reduces || (f.perDestination || f.toRoot) && h.Size() == 2
}

// contributed is how many bytes a host contributes.
func contributed(t *team.Team, w *team.Work, f form, host, root int) int {
	h, bytes := t.Hosts, eagerBytes(t, w)
	if leavesOut(h, f) {
		if f.fromRoot && host != root || f.toRoot && host == root {
			return 0
		}
		if f.perDestination {
			bytes -= h.On(host) * w.Count * w.Type.Size()
		}
	}
	if f.perSource {
		bytes *= h.On(host)
	}
	return bytes
}

// contribute writes what the other hosts need from the team to b: combined, if the operation reduces.
func contribute(t *team.Team, w *team.Work, b []byte) int {
	h, f, block := t.Hosts, formOf(w.Kind), w.Count*w.Type.Size()
	n := contributed(t, w, f, h.Host(), h.Of(w.Root))
	if n == 0 {
		return 0
	}
	to := unsafe.Pointer(&b[0])
	if !leavesOut(h, f) {
		combineTeam(t, w, to, 0, w.Src.Len)
		return n
	}
	size, at := w.Type.Size(), 0
	add := func(s, off, bytes int) {
		to := unsafe.Add(to, at)
		if f.reduces {
			combineTeam(t, w, to, off/size, bytes/size)
		} else {
			cpu.Copy(to, unsafe.Add(offered(t, w, s), off), bytes, false)
		}
		at += bytes
	}
	for s := range t.Size() {
		switch {
		case f.fromRoot && t.Name(s) != w.Root, f.reduces && s > 0:
		case !f.perDestination:
			add(s, 0, eagerBytes(t, w))
		default:
			for host := range h.Size() {
				for _, d := range h.Members(host) {
					if host != h.Host() {
						add(s, d*block, block)
					}
				}
			}
		}
	}
	return n
}

// combineTeam combines n elements of the team's sources, from off on.
func combineTeam(t *team.Team, w *team.Work, to unsafe.Pointer, off, n int) {
	off *= w.Type.Size()
	if t.Size() == 1 {
		load(w, to, unsafe.Add(w.Src.Ptr, off), n)
		return
	}
	srcs := t.Scratch()
	for r := range srcs {
		srcs[r] = unsafe.Add(slot(t, w, r), off)
	}
	div := 1
	if w.HalfAverage() {
		div = cpu.Fraction(t.Size())
	}
	cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, n, div, false)
}

// offered is where a rank's source is that travels with the proposals.
func offered(t *team.Team, w *team.Work, rank int) unsafe.Pointer {
	if t.Size() == 1 {
		return w.Src.Ptr
	}
	return slot(t, w, rank)
}

// conclude writes the result to where the team fetches it, or, if the leader is alone, to its destination.
func conclude(t *team.Team, w *team.Work, all func(host int) []byte) error {
	h, f, bytes, root := t.Hosts, formOf(w.Kind), eagerBytes(t, w), t.Hosts.Of(w.Root)
	if bytes == 0 {
		return nil
	}
	for host := range h.Size() {
		if n, want := len(all(host)), contributed(t, w, f, host, root); n != want {
			return fmt.Errorf("host %d has sent %d bytes, not %d: %w", host, n, want, fault.ErrMismatch)
		}
	}
	if f.toRoot && h.Host() != root {
		return nil
	}
	switch {
	case f.reduces:
		concludeReduction(t, w, f, all)
	case !f.perDestination && f.fromRoot:
		give(t, w, unsafe.Pointer(&all(root)[0]))
	case f.fromRoot:
		concludeScatter(t, w, root, all)
	default:
		concludeGather(t, w, f, all)
	}
	return nil
}

// concludeReduction combines what the hosts have contributed.
func concludeReduction(t *team.Team, w *team.Work, f form, all func(host int) []byte) {
	h, alone := t.Hosts, t.Size() == 1
	to, n := w.Dst.Ptr, w.Count
	if !alone {
		to, n = t.Outcome(eagerBytes(t, w)), w.Src.Len
	}
	if !leavesOut(h, f) {
		off := 0
		if f.perDestination && alone {
			off = t.Name(0) * n
		}
		combine(h, w, to, all, off, n)
		return
	}
	// Of two hosts, the other one has contributed what this one's ranks need.
	theirs, size := unsafe.Pointer(&all(1 - h.Host())[0]), w.Type.Size()
	parts := h.Members(h.Host())
	if !f.perDestination {
		parts = parts[:1]
	}
	for i, d := range parts {
		own, off := to, 0
		if f.perDestination {
			off, n = d*w.Count, w.Count
			if !alone {
				own = unsafe.Add(to, off*size)
			}
		}
		combineTeam(t, w, own, off, n)
		srcs := h.Scratch()
		srcs[h.Host()], srcs[1-h.Host()] = own, unsafe.Add(theirs, i*n*size)
		combineHosts(h, w, own, srcs, n)
	}
}

// concludeScatter gives each rank of the team its block.
func concludeScatter(t *team.Team, w *team.Work, root int, all func(host int) []byte) {
	block := w.Count * w.Type.Size()
	to := w.Dst.Ptr
	if t.Size() > 1 {
		to = t.Outcome(eagerBytes(t, w))
	}
	for i, d := range t.Hosts.Members(t.Hosts.Host()) {
		var from unsafe.Pointer
		if root == t.Hosts.Host() {
			from = unsafe.Add(offered(t, w, t.Index(w.Root)), d*block)
		} else {
			from = blockFor(t, w, root, unsafe.Pointer(&all(root)[0]), i)
		}
		at := to
		if t.Size() > 1 {
			at = unsafe.Add(to, d*block)
		}
		cpu.Copy(at, from, block, false)
	}
}

// blockFor is where, among the blocks that one of a host's ranks has contributed, that for rank i of this team is.
func blockFor(t *team.Team, w *team.Work, host int, blocks unsafe.Pointer, i int) unsafe.Pointer {
	for other := range t.Hosts.Host() { // the blocks are in the order of the hosts
		if other != host {
			i += t.Hosts.On(other)
		}
	}
	return unsafe.Add(blocks, i*w.Count*w.Type.Size())
}

// concludeGather gathers the blocks of all ranks: for the ranks of the team one behind the other, if each gets its own.
func concludeGather(t *team.Team, w *team.Work, f form, all func(host int) []byte) {
	h, block := t.Hosts, w.Count*w.Type.Size()
	whole := t.Whole() * block // what a rank gets
	to, getters := w.Dst.Ptr, 1
	if f.perDestination {
		getters = t.Size()
	}
	if t.Size() > 1 {
		to = t.Outcome(getters * whole)
	}
	for host := range h.Size() {
		sent := block // by a rank
		if f.perDestination {
			sent = whole - h.On(host)*block
		}
		for i, s := range h.Members(host) {
			for d := range getters {
				var from unsafe.Pointer
				switch {
				case host != h.Host() && !f.perDestination:
					from = unsafe.Pointer(&all(host)[i*sent])
				case host != h.Host():
					from = blockFor(t, w, host, unsafe.Pointer(&all(host)[i*sent]), d)
				case f.perDestination:
					from = unsafe.Add(offered(t, w, i), t.Name(d)*block)
				default:
					from = offered(t, w, i)
				}
				cpu.Copy(unsafe.Add(to, d*whole+s*block), from, block, false)
			}
		}
	}
}

// give gives the team what is one block for all ranks, or one for each.
func give(t *team.Team, w *team.Work, all unsafe.Pointer) {
	if bytes := eagerBytes(t, w); t.Size() > 1 {
		cpu.Copy(t.Outcome(bytes), all, bytes, false)
		return
	}
	takeBlock(t, w, all)
}

// takeBlock takes this rank's block of those of all ranks, or the only one.
func takeBlock(t *team.Team, w *team.Work, all unsafe.Pointer) {
	if w.Dst.Ptr == nil {
		return
	}
	bytes := w.Count * w.Type.Size()
	if formOf(w.Kind).perDestination {
		all = unsafe.Add(all, t.Name(t.Rank())*bytes)
	}
	cpu.Copy(w.Dst.Ptr, all, bytes, false)
}

// takeFold is conclude for what has been folded already, for operations in which a rank does not get all of it.
func takeFold(t *team.Team, w *team.Work, data []byte) {
	if w.Kind == team.KindReduce && t.Index(w.Root) < 0 {
		return
	}
	give(t, w, unsafe.Pointer(&data[0]))
}

// combine combines elements of the hosts' contributions in the order of the hosts, so that all get the same bits.
func combine(h team.Hosts, w *team.Work, to unsafe.Pointer, all func(host int) []byte, off, n int) {
	srcs := h.Scratch()
	for i := range srcs {
		srcs[i] = unsafe.Pointer(&all(i)[off*w.Type.Size()])
	}
	combineHosts(h, w, to, srcs, n)
}

// combineHosts combines n elements of each host, srcs.
func combineHosts(h team.Hosts, w *team.Work, to unsafe.Pointer, srcs []unsafe.Pointer, n int) {
	div := 1
	if w.Red == team.Avg {
		if div = h.Ranks(); w.HalfAverage() && h.Most() > 1 {
			combineFractions(h, w, to, srcs, n)
			return
		}
	}
	cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, n, div, false)
}

// combineFractions is combine where hosts of several ranks have sent fractions of sums.
func combineFractions(h team.Hosts, w *team.Work, to unsafe.Pointer, srcs []unsafe.Pointer, n int) {
	ranks := h.On(0)
	for i := 1; i < len(srcs); i++ {
		more := h.On(i)
		div := cpu.Fraction(ranks + more)
		if i == len(srcs)-1 {
			div = h.Ranks()
		}
		cpu.AddFractions(w.Type, to, srcs[0], srcs[i], n, ranks, more, div)
		srcs[0] = to
		ranks += more
	}
}

func takeOutcome(_ context.Context, t *team.Team, w *team.Work) error {
	block := w.Count * w.Type.Size()
	if block == 0 || w.Dst.Ptr == nil || t.Size() == 1 {
		return nil
	}
	switch f := formOf(w.Kind); {
	case !f.perSource:
		takeBlock(t, w, t.Outcome(eagerBytes(t, w)))
	case f.perDestination:
		bytes := t.Whole() * block
		cpu.Copy(w.Dst.Ptr, unsafe.Add(t.Outcome(t.Size()*bytes), t.Rank()*bytes), bytes, false)
	default:
		bytes := t.Whole() * block
		cpu.Copy(w.Dst.Ptr, t.Outcome(bytes), bytes, false)
	}
	return nil
}
