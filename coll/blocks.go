package coll

import (
	"context"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// blocks is one rank's view of a collective between hosts whose data consist of blocks: of what each rank sends to each
// other one. What goes from a host to another is the blocks of its ranks for those of the other, in the order of the
// former and, of each of these, the latter. Each lane moves a part of it. An all-gather has one block of each rank for
// all of a host, a reduce-scatter one for each rank, in which the data of a host's ranks are combined, and a reduce a
// single one.
//
// If all ranks can be accessed by their teams, owners of lanes read and write the callers' memory. Otherwise, if some
// host says that its ranks cannot, all hosts go by rounds, which have a piece of each block: then ranks of hosts that have
// several copy their pieces to staging memory, from where owners send them, and fetch what has come from that of others.
type blocks struct {
	call
	form
	h           team.Hosts
	lane, lanes int  // lane is -1 if this rank has none of them
	windows     bool // data are in staging memory
	lent        bool // to an exchange, whose end frees it
	root        int  // index in the team; -1: on another host
	lo, most    int  // elements from lo on of each block, and no more
	srcs, dsts  []unsafe.Pointer
	combined    []unsafe.Pointer
	sends       []int
	receives    []int
	parts       parts
}

// form is which blocks an operation has.
type form struct {
	perSource, perDestination bool // a block for each rank that sends, for each that receives
	toRoot, fromRoot          bool
	reduces                   bool
}

func formOf(k team.OpKind) form {
	switch k {
	case team.KindAllGather, team.KindAllGatherV:
		return form{perSource: true}
	case team.KindGather, team.KindGatherV:
		return form{perSource: true, toRoot: true}
	case team.KindScatter, team.KindScatterV:
		return form{perDestination: true, fromRoot: true}
	case team.KindReduceScatter:
		return form{perDestination: true, reduces: true}
	case team.KindReduce:
		return form{toRoot: true, reduces: true}
	case team.KindAllReduce:
		return form{reduces: true}
	case team.KindBroadcast:
		return form{fromRoot: true}
	}
	return form{perSource: true, perDestination: true}
}

var spare = sync.Pool{New: func() any { return new(blocks) }}

// newBlocks returns a rank's view of the running operation, until free.
func newBlocks(ctx context.Context, t *team.Team, w *team.Work) *blocks {
	b := spare.Get().(*blocks)
	b.call, b.form, b.h = newCall(ctx, t, w), formOf(w.Kind), t.Hosts
	b.lane, b.lanes = b.h.Lane(), b.h.Lanes()
	b.windows, b.lent, b.lo, b.most = false, false, 0, team.MaxCount
	b.root = t.Index(w.Root)
	b.srcs, b.dsts, b.combined = sized(b.srcs, b.n), sized(b.dsts, b.n), sized(b.combined, b.n)
	return b
}

func sized[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n)
	}
	s = s[:n]
	clear(s)
	return s
}

func (b *blocks) free() {
	clear(b.srcs)
	clear(b.dsts)
	clear(b.combined)
	b.call = call{}
	spare.Put(b)
}

// Done implements team.Blocks.
func (b *blocks) Done() {
	if b.lent {
		b.free()
	}
}

// sendsData and getsData report whether a rank of the team has a source, or a destination.
func (b *blocks) sendsData(rank int) bool { return !b.fromRoot || rank == b.root }
func (b *blocks) getsData(rank int) bool  { return !b.toRoot || rank == b.root }

// direct finds the callers' memory.
func (b *blocks) direct() error {
	for r := range b.n {
		var err error
		if n := b.sourceBytes(r); n > 0 {
			if b.srcs[r], err = b.t.Source(r, 0, n); err != nil {
				return err
			}
		}
		if n := b.destinationBytes(r); n > 0 {
			if b.dsts[r], err = b.t.Destination(r, 0, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *blocks) sourceBytes(rank int) (n int) {
	switch {
	case !b.sendsData(rank):
		return 0
	case isVector(b.w.Kind):
		return int(countsOf(b.t, rank).all[0]) * b.size
	case b.perDestination:
		return b.t.Whole() * b.w.Count * b.size
	}
	return b.w.Count * b.size
}

func (b *blocks) destinationBytes(rank int) (n int) {
	switch {
	case !b.getsData(rank):
		return 0
	case isVector(b.w.Kind):
		return int(countsOf(b.t, rank).all[1]) * b.size
	case b.perSource:
		return b.t.Whole() * b.w.Count * b.size
	}
	return b.w.Count * b.size
}

// reached reports whether peers can access all the team's buffers.
func (b *blocks) reached() bool {
	for r := range b.n {
		if b.sourceBytes(r) > 0 && !b.t.Direct(r) || b.destinationBytes(r) > 0 && !b.t.DirectDst(r) {
			return false
		}
	}
	return true
}

// piece is a part of a block: n elements from at on.
type piece struct{ source, destination, at, n int } // ranks of the two hosts, by their index there; -1: all of them

// pieces goes through some elements of what goes from a host to another.
type pieces struct {
	b        *blocks
	from, to []int // the hosts' ranks
	sends    bool  // this host is from
	block    int
	skip     int // elements before the first one
	left     int
	piece
}

func (b *blocks) pieces(from, to, off, n int) pieces {
	p := pieces{b: b, from: b.h.Members(from), to: b.h.Members(to), sends: from == b.h.Host(), skip: off, left: n}
	begin, _ := b.part(&p)
	p.skip += begin
	return p
}

// number is how many blocks there are.
func (p *pieces) number() int {
	n := 1
	if p.b.perSource {
		n = len(p.from)
	}
	if p.b.perDestination {
		n *= len(p.to)
	}
	return n
}

// ranks is between which ranks a block goes.
func (p *pieces) ranks(block int) (source, destination int) {
	switch b := p.b; {
	case b.perSource && b.perDestination:
		return block / len(p.to), block % len(p.to)
	case b.perSource:
		return block, -1
	case b.perDestination:
		return -1, block
	}
	return -1, -1
}

// length is how many elements of a block take part.
func (p *pieces) length(block int) int {
	b := p.b
	n := b.w.Count
	if isVector(b.w.Kind) {
		s, d := p.ranks(block)
		n = b.counted(p, s, d)
	}
	return b.clamp(n)
}

// clamp is how many of n elements of a block take part.
func (b *blocks) clamp(n int) int { return max(min(n-b.lo, b.most), 0) }

// counted is the length of a block of an operation with counts, by those of this host's rank.
func (b *blocks) counted(p *pieces, s, d int) int {
	source, destination := b.w.Root, b.w.Root
	if s >= 0 {
		source = p.from[s]
	}
	if d >= 0 {
		destination = p.to[d]
	} else if !b.toRoot { // the same for all
		d, destination = 0, p.to[0]
	} else {
		d = b.root
	}
	if s < 0 {
		s = b.root
	}
	if p.sends {
		return int(countsOf(b.t, s).send[destination])
	}
	return int(countsOf(b.t, d).receive[source])
}

// part is which elements this rank's lane moves: n from begin on.
func (b *blocks) part(p *pieces) (begin, n int) {
	total, blocks := 0, p.number()
	if isVector(b.w.Kind) {
		for i := range blocks {
			total += p.length(i)
		}
	} else {
		total = blocks * p.length(0)
	}
	slice := alignedSlice(total, b.lanes, b.size)
	begin = min(b.lane*slice, total)
	return begin, min(slice, total-begin)
}

// next goes on to the next piece.
func (p *pieces) next() bool {
	for all := p.number(); p.left > 0 && p.block < all; p.block++ {
		n := p.length(p.block)
		if p.skip >= n {
			p.skip -= n
			continue
		}
		p.source, p.destination = p.ranks(p.block)
		p.at, p.n = p.skip, min(n-p.skip, p.left)
		p.left -= p.n
		p.skip += p.n
		return true
	}
	return false
}

// from is where a piece is in the source of a rank of the team.
func (p *pieces) in(rank int) unsafe.Pointer {
	b := p.b
	at := p.at
	if d := p.destination; d >= 0 {
		switch {
		case b.windows:
			at += p.to[d] * b.most
		case isVector(b.w.Kind):
			at += int(countsOf(b.t, rank).sendAt[p.to[d]])
		default:
			at += p.to[d] * b.w.Count
		}
	}
	if !b.windows {
		at += b.lo
	}
	return unsafe.Add(b.srcs[rank], at*b.size)
}

// out is where a piece belongs in the destination of a rank of the team.
func (p *pieces) out(rank int) unsafe.Pointer {
	b := p.b
	at := p.at
	if s := p.source; s >= 0 {
		switch {
		case b.windows:
			at += p.from[s] * b.most
		case isVector(b.w.Kind):
			at += int(countsOf(b.t, rank).receiveAt[p.from[s]])
		default:
			at += p.from[s] * b.w.Count
		}
	}
	if !b.windows {
		at += b.lo
	}
	return unsafe.Add(b.dsts[rank], at*b.size)
}

// sender is the rank of the team whose data a piece has, receiver the one that gets it, or the
// one where owners leave what all get.
func (p *pieces) sender() int {
	if p.source >= 0 {
		return p.source
	}
	return p.b.root
}

func (p *pieces) receiver() int {
	switch {
	case p.destination >= 0:
		return p.destination
	case p.b.toRoot:
		return p.b.root
	case p.b.windows:
		return 0
	}
	return p.b.me
}

// combines reports whether sources have to be combined, or changed, before they are sent.
func (b *blocks) combines() bool {
	return b.reduces && (b.n > 1 || b.w.Red == team.PreMulSum && !b.windows)
}

// Source implements team.Blocks.
func (b *blocks) Source(host, off, n int) unsafe.Pointer {
	if b.combines() {
		return nil
	}
	p := b.pieces(b.h.Host(), host, off, n)
	if !p.next() {
		return nil
	}
	from := b.source(&p)
	for together := p.n; p.next(); together += p.n {
		if !behind(b.source(&p), from, together*b.size) {
			return nil
		}
	}
	return from
}

// behind reports whether p is so many bytes behind from. There may be no memory at that place, so no pointer is made to it.
func behind(p, from unsafe.Pointer, bytes int) bool {
	return uintptr(p) == uintptr(from)+uintptr(bytes)
}

// source is where a piece is that need not be combined.
func (b *blocks) source(p *pieces) unsafe.Pointer {
	if b.reduces {
		return p.in(0)
	}
	return p.in(p.sender())
}

// Fill implements team.Blocks.
func (b *blocks) Fill(to unsafe.Pointer, host, off, n int) {
	at := 0
	for p := b.pieces(b.h.Host(), host, off, n); p.next(); at += p.n * b.size {
		switch to := unsafe.Add(to, at); {
		case !b.combines():
			cpu.Copy(to, b.source(&p), p.n*b.size, false)
		case b.n == 1:
			load(b.w, to, p.in(0), p.n)
		default:
			for r := range b.combined {
				b.combined[r] = p.in(r)
			}
			div := 1
			if b.w.HalfAverage() {
				div = cpu.Fraction(b.n)
			}
			cpu.ReduceN(b.w.Type, b.w.Red.Op(), to, b.combined, p.n, div, false)
		}
	}
}

// Destination implements team.Blocks.
func (b *blocks) Destination(host, off, n int) (to unsafe.Pointer, together int) {
	p := b.pieces(host, b.h.Host(), off, n)
	if b.toRoot && b.root < 0 || !p.next() {
		return nil, 0
	}
	to = p.out(p.receiver())
	for together = p.n; p.next() && behind(p.out(p.receiver()), to, together*b.size); together += p.n {
	}
	return to, together
}

// Take implements team.Blocks.
func (b *blocks) Take(from unsafe.Pointer, host, off, n int) {
	if b.toRoot && b.root < 0 {
		return
	}
	at := 0
	for p := b.pieces(host, b.h.Host(), off, n); p.next(); at += p.n * b.size {
		from := unsafe.Add(from, at)
		if p.destination >= 0 || b.toRoot || b.windows {
			b.copy(p.out(p.receiver()), from, p.n)
			continue
		}
		for r := range b.dsts {
			b.copy(p.out(r), from, p.n)
		}
	}
}

func (b *blocks) copy(to, from unsafe.Pointer, n int) {
	if to != from {
		cpu.Copy(to, from, n*b.size, streams(b.t, b.w.Dst.Bytes()))
	}
}

// exchange is the exchange of this rank's lane.
func (b *blocks) exchange() team.Exchange {
	h := b.h
	me, hosts := h.Host(), h.Size()
	p := schedule.Plan{Way: wayAcross(b.t, b.w, b.clamp(b.w.Count)), Hosts: hosts, Me: me, Line: 64 / b.size, Item: schedule.LargestItem / b.size}
	if b.fromRoot || b.toRoot {
		p.Root = h.Of(b.w.Root)
	}
	x := team.Exchange{Work: b.w, Blocks: b}
	switch {
	case p.Way == schedule.Pairwise || p.Way == schedule.Linear:
		b.pairwise(&p)
	case b.w.Kind == team.KindReduce:
		own := b.pieces(me, me, 0, 0)
		_, p.Count = b.part(&own)
		p.Item = max(b.t.Costs().Item(p.Way, hosts, p.Count*b.size)/b.size, 1)
	default:
		a := b.newParts(p)
		p, x.Blocks = a.plan, a
	}
	x.Plan = p
	return x
}

// pairwise makes p what this host sends to each host, and receives from it.
func (b *blocks) pairwise(p *schedule.Plan) {
	me := p.Me
	if b.reduces {
		own := b.pieces(me, me, 0, 0)
		_, p.Count = b.part(&own)
	}
	b.sends, b.receives = sized(b.sends, p.Hosts), sized(b.receives, p.Hosts)
	p.Sends, p.Receives, p.Reduces = b.sends, b.receives, b.reduces
	for other := range p.Hosts {
		if other == me {
			continue
		}
		if (!b.toRoot || other == p.Root) && (!b.fromRoot || me == p.Root) {
			to := b.pieces(me, other, 0, 0)
			_, b.sends[other] = b.part(&to)
		}
		if (!b.toRoot || me == p.Root) && (!b.fromRoot || other == p.Root) {
			from := b.pieces(other, me, 0, 0)
			_, b.receives[other] = b.part(&from)
		}
	}
}

// local moves the blocks within this host that this rank gets.
func (b *blocks) local() {
	if b.reduces || !b.getsData(b.me) || b.fromRoot && b.root < 0 {
		return
	}
	me := b.h.Host()
	p := b.pieces(me, me, 0, 0)
	for p.block = range p.number() {
		p.source, p.destination = p.ranks(p.block)
		p.at, p.n = 0, p.length(p.block)
		if p.destination >= 0 && p.destination != b.me || p.n == 0 {
			continue
		}
		b.copy(p.out(b.me), p.in(p.sender()), p.n)
	}
}
