package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives between hosts that a CollNet plugin does, among their leaders. Data go by pieces through the window, which is memory
// of the leader that the plugin has registered: the ranks of a host combine a piece in it, or gather it there, and all fetch what has
// come, while the plugin does the one before. A leader without a team whose buffers the plugin has registered passes these on.

const collNet = "collnet"

var collNetPath = team.Path{Name: collNet, Acquire: acquireCollNet, Run: runCollNet}

// Why buffers are staged.
const (
	ownRank    = "its own rank alone reads and writes it"
	viaWindow  = "it goes through memory of the leader, which the CollNet plugin has registered"
	halfValues = "averages of half types are carried as fractions"
)

// acquireCollNet finds the registrations of what peers, or the plugin, access.
func acquireCollNet(t *team.Team, w *team.Work) error {
	if err := acquire(t, w); err != nil {
		return err
	}
	if t.Size() > 1 {
		if w.Kind == team.KindAllGather {
			unregister(&w.SrcBuf, ownRank)
		}
		unregister(&w.DstBuf, ownRank)
	}
	return nil
}

// unregister has a buffer staged.
func unregister(b *team.Buf, why string) {
	if b.Claim != nil && !b.Shared {
		b.Claim.Release()
	}
	*b = team.Buf{Why: why}
}

// offload is an operation that goes through the window.
type offload struct {
	call
	fabric team.Fabric
	one    int // bytes of a rank's block; of an all-reduce 0
	block  int // bytes of a host's block: those of as many ranks as the largest host has; of an all-reduce all
	whole  int // bytes of all blocks
	step   int // bytes of a piece
	begin  int // where the block of this host begins
	srcs   []unsafe.Pointer
	stages bool // this rank's source is staged for the others
}

// Each round has four steps of progress: of the piece that it begins with, and of the one that it ends.
const (
	collNetShown    = 1 + iota // the source is in staging memory
	collNetCombined            // this rank's part is in the window
	collNetDone                // the plugin has done the piece before
	collNetFetched
	stepsOfCollNet = collNetFetched
)

func runCollNet(ctx context.Context, t *team.Team, w *team.Work) error {
	o := newOffload(ctx, t, w)
	if o.n == 1 {
		if o.passes() {
			return o.pass()
		}
		unregister(&w.SrcBuf, w.SrcBuf.Why)
		unregister(&w.DstBuf, w.DstBuf.Why)
	}
	return o.run()
}

func newOffload(ctx context.Context, t *team.Team, w *team.Work) *offload {
	o := &offload{call: newCall(ctx, t, w), fabric: t.Hosts.Fabric(), step: t.Hosts.Layout().CollNet.Step}
	o.block = w.Count * o.size
	if w.Kind != team.KindAllReduce {
		o.one = o.block
		o.block *= t.Hosts.Most()
		o.begin = t.Hosts.Host() * o.block
	}
	if o.whole = o.block; o.one > 0 {
		o.whole *= t.Hosts.Size()
	}
	w.Lanes = 1
	return o
}

// passes reports whether the plugin can have the buffers, of a team of one rank, and notes why not.
func (o *offload) passes() bool {
	w, why := o.w, ""
	if w.HalfAverage() {
		why = halfValues
	} else if o.block > o.one && o.one > 0 {
		why = viaWindow
	}
	ok := true
	for _, b := range [2]*team.Buf{&w.SrcBuf, &w.DstBuf} {
		if b.Claim != nil && why == "" {
			if err := o.fabric.Has(b.Claim); err != nil {
				b.Why = err.Error()
				ok = false
			}
		} else {
			if b.Claim != nil {
				b.Why = why
			}
			ok = false
		}
	}
	if ok {
		return true
	}
	for _, b := range [2]*team.Buf{&w.SrcBuf, &w.DstBuf} {
		if b.Why == "" { // the other one is the reason
			b.Why = viaWindow
		}
	}
	return false
}

// pass has the plugin do all of it.
func (o *offload) pass() error {
	w := o.w
	w.SrcBuf.WasDirect, w.DstBuf.WasDirect = true, true
	o.fabric.Begin(o.ctx, &team.Offload{Kind: w.Kind, Type: w.Type, Red: w.Red, Src: w.Src.Ptr, Dst: w.Dst.Ptr, SrcClaim: w.SrcBuf.Claim,
		DstClaim: w.DstBuf.Claim, Block: o.block, To: o.whole})
	err := o.fabric.Finish(o.ctx)
	if err == nil && w.Red == team.Avg {
		o.finish(w.Dst.Ptr, w.Dst.Ptr, w.Count)
	}
	return err
}

func (o *offload) run() error {
	w := o.w
	w.Inner = [2]string{"push", "pull"}
	o.stages = w.Kind != team.KindAllGather && !w.SrcBuf.Direct()
	if w.Kind != team.KindAllGather {
		var err error
		if o.srcs, _, _, err = o.t.Buffers(w.Src.Bytes(), 0); err != nil {
			return err
		}
	}
	pieces := (o.whole + o.step - 1) / o.step
	for i := 0; i <= pieces; i++ {
		if err := o.round(i, pieces); err != nil {
			return err
		}
	}
	return o.waitTeam(uint64(pieces+1)*stepsOfCollNet, "exit")
}

// round begins piece i, and ends the one before.
func (o *offload) round(i, pieces int) error {
	base, leads := uint64(i)*stepsOfCollNet, o.me == 0
	if i < pieces {
		if err := o.prepare(i, base); err != nil {
			return err
		}
	}
	o.t.Progress(base + collNetCombined)
	if leads && i > 0 {
		if err := o.fabric.Finish(o.ctx); err != nil {
			return err
		}
		o.t.Progress(base + collNetDone)
	}
	if leads && i < pieces {
		if err := o.waitTeam(base+collNetCombined, "reduce"); err != nil {
			return err
		}
		o.offer(i)
	}
	if i > 0 {
		if !leads {
			if err := o.t.WaitProgress(o.ctx, 0, base+collNetDone, collNet); err != nil {
				return err
			}
		}
		o.fetch(i - 1)
	}
	o.t.Progress(base + collNetFetched)
	return nil
}

// piece is which bytes of all blocks piece i has.
func (o *offload) piece(i int) (from, to int) { return i * o.step, min((i+1)*o.step, o.whole) }

// sent and received are where the window has what the plugin sends of piece i, and what it receives.
func (o *offload) sent(i int) unsafe.Pointer {
	return unsafe.Add(o.fabric.Window(), i&1*2*team.WindowPart)
}

func (o *offload) received(i int) unsafe.Pointer { return unsafe.Add(o.sent(i), team.WindowPart) }

// offer has the plugin begin piece i.
func (o *offload) offer(i int) {
	from, to := o.piece(i)
	f := team.Offload{Kind: o.w.Kind, Type: o.w.Type, Red: o.w.Red, Src: o.sent(i), Dst: o.received(i), Block: o.block, From: from, To: to}
	if o.one == 0 { // each piece is an all-reduce of its own
		f.Block, f.From, f.To = to-from, 0, to-from
	}
	o.fabric.Begin(o.ctx, &f)
}

// prepare brings this rank's part of piece i to the window.
func (o *offload) prepare(i int, base uint64) error {
	if i > 1 { // until all have fetched what the window has
		if err := o.waitTeam(base, "staging"); err != nil {
			return err
		}
	}
	from, to := o.piece(i)
	if o.w.Kind == team.KindAllGather {
		o.mine(from, to, func(at, off, n int) {
			cpu.Copy(unsafe.Add(o.sent(i), at), unsafe.Add(o.w.Src.Ptr, off), n, false)
		})
		return nil
	}
	if o.n == 1 && !o.w.HalfAverage() {
		o.each(from, to, func(at, off, n int) {
			load(o.w, unsafe.Add(o.sent(i), at), unsafe.Add(o.w.Src.Ptr, off), n/o.size)
		})
		return nil
	}
	if o.stages {
		o.each(from, to, func(at, off, n int) {
			load(o.w, unsafe.Add(o.staged(o.me, i), at), unsafe.Add(o.w.Src.Ptr, off), n/o.size)
		})
		o.t.Progress(base + collNetShown)
	}
	for r := range o.n {
		if r != o.me && o.srcs[r] == nil {
			if err := o.t.WaitProgress(o.ctx, r, base+collNetShown, "reduce"); err != nil {
				return err
			}
		}
	}
	div := 1
	if o.w.HalfAverage() {
		div = cpu.Fraction(o.t.Whole())
	}
	share := alignedSlice((to-from)/o.size, o.n, o.size) * o.size
	lo, hi := min(from+o.me*share, to), min(from+(o.me+1)*share, to)
	srcs := o.t.Scratch()
	o.each(lo, hi, func(at, off, n int) {
		at += lo - from
		for r := range srcs {
			switch {
			case r == o.me && o.stages:
				srcs[r] = unsafe.Add(o.staged(r, i), at)
			case o.srcs[r] != nil:
				srcs[r] = unsafe.Add(o.srcs[r], off)
			default:
				srcs[r] = unsafe.Add(o.staged(r, i), at)
			}
		}
		cpu.ReduceN(o.w.Type, o.w.Red.Op(), unsafe.Add(o.sent(i), at), srcs, n/o.size, div, false)
	})
	return nil
}

// staged is where a rank shows its source of piece i to its team.
func (o *offload) staged(rank, i int) unsafe.Pointer {
	return unsafe.Add(o.t.Staging(rank), i&1*stagingHalf)
}

// fetch takes what this rank gets of piece i.
func (o *offload) fetch(i int) {
	from, to := o.piece(i)
	take := o.each
	if o.w.Kind == team.KindReduceScatter {
		take = o.mine
	}
	take(from, to, func(at, off, n int) {
		o.finish(unsafe.Add(o.w.Dst.Ptr, off), unsafe.Add(o.received(i), at), n/o.size)
	})
}

// finish copies n elements of a result, and divides those of averages.
func (o *offload) finish(dst, src unsafe.Pointer, n int) {
	switch ranks := o.t.Whole(); {
	case o.w.HalfAverage():
		cpu.Scale(o.w.Type, dst, src, n, float64(cpu.Fraction(ranks))/float64(ranks))
	case o.w.Red == team.Avg:
		srcs := [1]unsafe.Pointer{src}
		cpu.ReduceN(o.w.Type, cpu.Sum, dst, srcs[:], n, ranks, false)
	default:
		cpu.Copy(dst, src, n*o.size, false)
	}
}

// each calls f with the n bytes of each rank's block that lie in a part of all blocks: at bytes behind its beginning, and off bytes
// behind that of the ranks' blocks as callers have them.
func (o *offload) each(from, to int, f func(at, off, n int)) {
	if o.one == 0 {
		if to > from {
			f(0, from, to-from)
		}
		return
	}
	for h := from / o.block; h*o.block < to; h++ {
		for l, rank := range o.t.Hosts.Members(h) {
			begin := h*o.block + l*o.one
			if lo, hi := max(begin, from), min(begin+o.one, to); lo < hi {
				f(lo-from, rank*o.one+lo-begin, hi-lo)
			}
		}
	}
}

// mine calls f, if there are any, with the n bytes of this rank's block that lie there: at bytes behind the first byte of this host's
// block that does, and off bytes behind the block's beginning.
func (o *offload) mine(from, to int, f func(at, off, n int)) {
	begin := o.begin + o.me*o.one
	if lo, hi := max(begin, from), min(begin+o.one, to); lo < hi {
		f(lo-max(o.begin, from), lo-begin, hi-lo)
	}
}
