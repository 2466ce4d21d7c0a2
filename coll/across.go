package coll

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives of a communicator that spans hosts. Small data travels with the proposals by which the hosts agree: each
// team's leader combines the team's sources, and then the contributions of all hosts, in the order of the hosts, into
// the result. Larger data is cut into slices, one for each lane, whose owners on all hosts exchange it. Where peers of
// its host can access all buffers, an owner combines its team's sources piece by piece, as the exchange needs them, and
// writes each piece of the result to its whole team; it begins while the hosts agree. Otherwise the slices come to their
// owners through staging memory, and the results to all: see moveStaged.

var (
	acrossFoldPath  = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Folds: true, Conclude: conclude, Run: takeOutcome}
	acrossPartPath  = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Folds: true, Folded: takeFold, Conclude: conclude, Run: takeOutcome}
	acrossSmallPath = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Conclude: conclude, Run: takeOutcome}
	acrossPaths     = [...]team.Path{schedule.Ring: acrossPath(schedule.Ring), schedule.Doubling: acrossPath(schedule.Doubling),
		schedule.Halving: acrossPath(schedule.Halving), schedule.Chain: acrossPath(schedule.Chain), schedule.Tree: acrossPath(schedule.Tree),
		schedule.Scatter: acrossPath(schedule.Scatter)}
)

func acrossPath(way schedule.Way) team.Path {
	return team.Path{Name: way.String(), Acquire: acquireAcross, Exchange: exchangeAcross, Run: runAcross}
}

// chooseAcross is choosePath between hosts: a pure function of the signature, the hosts, and how many ranks they have.
func chooseAcross(t *team.Team, w *team.Work) {
	h := t.Hosts
	switch small, source := smallAcross(t, w); {
	case isVector(w.Kind):
		w.Lanes, w.Path = h.Lanes(), &countedPath
		if t.Whole() > mostCounted {
			w.Err = fmt.Errorf("%v of %d ranks, more than %d: %w", w.Kind, t.Whole(), mostCounted, fault.ErrLimit)
		}
	case small:
		switch w.Kind {
		case team.KindAllReduce:
			w.Path = &acrossFoldPath
		case team.KindReduce, team.KindReduceScatter:
			w.Path = &acrossPartPath
		default:
			w.Path = &acrossSmallPath
		}
		if source > team.PayloadSize && t.Size() > 1 {
			w.Eager.Bytes = source
		}
		w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with what the hosts say", "its own rank alone writes it"
	default:
		w.Lanes = h.Lanes()
		way := wayAcross(t, w)
		if way < schedule.ToTree {
			w.Path = &acrossPaths[way]
		} else {
			w.Path = &blockPaths[way]
		}
	}
}

// smallAcross reports whether data travel with the proposals. source is how many bytes of a rank's source do.
func smallAcross(t *team.Team, w *team.Work) (small bool, source int) {
	h := t.Hosts
	source = eagerBytes(t, w)
	contributed, most, outcome := source, h.Contribution(), source // of a host; what a team gets
	switch w.Kind {
	case team.KindAllGather, team.KindGather:
		contributed, most, outcome = h.Most()*source, h.Share(), t.Whole()*source
	case team.KindAllToAll:
		contributed, most, outcome = h.Most()*source, h.Share(), h.Most()*source
	}
	if h.Most() > 1 {
		most = min(most, team.PartialBytes)
	}
	return contributed <= most && (h.Most() == 1 || outcome <= team.PartialBytes), source
}

// wayAcross is how data travel between hosts that do not travel with the proposals.
func wayAcross(t *team.Team, w *team.Work) schedule.Way {
	var ways []schedule.Way
	switch w.Kind {
	case team.KindAllReduce:
		ways = schedule.Reducing
	case team.KindBroadcast:
		ways = schedule.Sending
	case team.KindReduce:
		ways = schedule.ToRoot
	default:
		return schedule.Pairwise
	}
	if asked := t.Algorithm(); asked != "" {
		for _, way := range ways {
			if way.String() == asked {
				return way
			}
		}
	}
	return t.Tuning().Hosts.Best(ways, t.Hosts.Size(), sliceAcross(t, w)*w.Type.Size())
}

// sliceAcross is how many elements each lane moves, but for the last ones.
func sliceAcross(t *team.Team, w *team.Work) int {
	return alignedSlice(w.Count, t.Hosts.Lanes(), w.Type.Size())
}

// laneAcross is which elements a lane moves: n from off on.
func laneAcross(t *team.Team, w *team.Work, lane int) (off, n int) {
	slice := sliceAcross(t, w)
	off = min(lane*slice, w.Count)
	return off, min(slice, w.Count-off)
}

func offerToLeader(t *team.Team, w *team.Work) {
	if t.Size() > 1 {
		offerEager(t, w)
	}
}

// contribute writes what the other hosts need from the team to b: combined, if the operation reduces.
func contribute(t *team.Team, w *team.Work, b []byte) int {
	bytes := eagerBytes(t, w)
	if bytes == 0 {
		return 0
	}
	to := unsafe.Pointer(&b[0])
	f := formOf(w.Kind)
	switch {
	case f.fromRoot:
		root := t.Index(w.Root)
		if root < 0 {
			return 0
		}
		cpu.Copy(to, offered(t, w, root), bytes, false)
	case f.perSource:
		for r := range t.Size() {
			cpu.Copy(unsafe.Add(to, r*bytes), offered(t, w, r), bytes, false)
		}
		bytes *= t.Size()
	case t.Size() == 1:
		load(w, to, w.Src.Ptr, w.Src.Len)
	default:
		srcs := t.Scratch()
		for r := range srcs {
			srcs[r] = slot(t, w, r)
		}
		div := 1
		if w.HalfAverage() {
			div = cpu.Fraction(t.Size())
		}
		cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, w.Src.Len, div, false)
	}
	return bytes
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
	h, bytes, f := t.Hosts, eagerBytes(t, w), formOf(w.Kind)
	if bytes == 0 {
		return nil
	}
	from := h.Of(w.Root)
	for host := range h.Size() {
		want := bytes
		switch {
		case f.fromRoot && host != from:
			want = 0
		case f.perSource:
			want *= h.On(host)
		}
		if n := len(all(host)); n != want {
			return fmt.Errorf("host %d has sent %d bytes, not %d: %w", host, n, want, fault.ErrMismatch)
		}
	}
	alone := t.Size() == 1
	if alone && w.Dst.Ptr == nil || f.toRoot && t.Index(w.Root) < 0 {
		return nil
	}
	to := w.Dst.Ptr
	switch {
	case f.fromRoot:
		give(t, w, unsafe.Pointer(&all(from)[0]))
	case f.perSource:
		if !alone {
			to = t.Outcome(t.Whole() * w.Count * w.Type.Size())
			if f.perDestination {
				to = t.Outcome(t.Size() * bytes)
			}
		}
		for host := range h.Size() {
			gatherBlocks(t, w, f, to, h.Members(host), unsafe.Pointer(&all(host)[0]))
		}
	default:
		off, n := 0, w.Count
		switch {
		case w.Kind == team.KindReduceScatter && alone:
			off = t.Name(t.Rank()) * n
		case !alone:
			to, n = t.Outcome(bytes), bytes/w.Type.Size()
		}
		combine(h, w, to, all, off, n)
	}
	return nil
}

// gatherBlocks writes the blocks of a host's ranks, which have contributed from, to where they belong in the destination of
// each rank that gets them: in an all-to-all those of all ranks of the team, one behind the other, otherwise one.
func gatherBlocks(t *team.Team, w *team.Work, f form, to unsafe.Pointer, ranks []int, from unsafe.Pointer) {
	block, source := w.Count*w.Type.Size(), eagerBytes(t, w)
	for i, s := range ranks {
		from := unsafe.Add(from, i*source)
		if !f.perDestination {
			cpu.Copy(unsafe.Add(to, s*block), from, block, false)
			continue
		}
		for d := range t.Size() {
			cpu.Copy(unsafe.Add(to, d*source+s*block), unsafe.Add(from, t.Name(d)*block), block, false)
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

// acquireAcross is acquire. In a team of one rank nobody else accesses the buffers.
func acquireAcross(t *team.Team, w *team.Work) error {
	if t.Size() == 1 {
		return nil
	}
	return acquire(t, w)
}

// planAcross is what this host does on a lane.
func planAcross(t *team.Team, w *team.Work, lane int) schedule.Plan {
	h, size := t.Hosts, w.Type.Size()
	_, n := laneAcross(t, w, lane)
	p := schedule.Plan{Way: wayAcross(t, w), Hosts: h.Size(), Me: h.Host(), Root: h.Of(w.Root), Count: n, Line: 64 / size}
	p.Item = max(t.Tuning().Hosts.Item(p.Way, p.Hosts, n*size)/size, 1)
	return p
}

// exchangeAcross is what this rank's lane does: at once, unless the data come through staging memory.
func exchangeAcross(t *team.Team, w *team.Work) (team.Exchange, error) {
	h, size := t.Hosts, w.Type.Size()
	p := planAcross(t, w, h.Lane())
	off, _ := laneAcross(t, w, h.Lane())
	at := unsafe.Add(ownData(w), off*size)
	x := team.Exchange{Plan: p, Work: w, Source: at, Destination: at, Early: true}
	var err error
	switch {
	case t.Size() > 1 && directAcross(t, w):
		err = includeTeam(t, w, &x, off*size)
	case t.Size() > 1:
		x.Early = false
	case w.Kind != team.KindBroadcast:
		x.Source = unsafe.Add(w.Src.Ptr, off*size)
	}
	return x, err
}

// includeTeam makes x one from the team's sources to all its destinations, which peers can access, from byte off on.
func includeTeam(t *team.Team, w *team.Work, x *team.Exchange, off int) error {
	bytes := w.Count * w.Type.Size()
	srcs, dsts, _, err := t.Buffers(bytes, bytes)
	if err != nil {
		return err
	}
	mine := t.Rank() // whose data the exchange has already
	if w.Kind != team.KindBroadcast {
		x.Sources = srcs
		for r := range srcs {
			srcs[r] = unsafe.Add(srcs[r], off)
		}
	} else if root := t.Index(w.Root); root >= 0 {
		mine = root
		x.Source = unsafe.Add(srcs[root], off)
		x.Destination = x.Source
	}
	x.Copies = dsts[:0]
	for r, p := range dsts {
		if r != mine {
			x.Copies = append(x.Copies, unsafe.Add(p, off))
		}
	}
	x.Stream = streams(t, bytes)
	return nil
}

func runAcross(ctx context.Context, t *team.Team, w *team.Work) error {
	switch {
	case t.Size() == 1:
		w.SrcBuf.WasDirect, w.DstBuf.WasDirect = true, true
		return t.Hosts.Move(ctx, nil)
	case directAcross(t, w):
		return moveDirect(ctx, t, w)
	}
	return moveStaged(ctx, t, w)
}

// directAcross reports whether the team can access all buffers.
func directAcross(t *team.Team, w *team.Work) bool {
	for r := range t.Size() {
		sends, receives := true, true
		if w.Kind == team.KindBroadcast {
			sends = t.Name(r) == w.Root
			receives = !sends
		}
		if sends && !t.Direct(r) || receives && !t.DirectDst(r) {
			return false
		}
	}
	return true
}

// moveDirect completes what exchangeAcross began.
func moveDirect(ctx context.Context, t *team.Team, w *team.Work) error {
	k := newCall(ctx, t, w)
	w.Inner[1] = "push"
	if t.Hosts.Lane() >= 0 {
		if err := t.Hosts.Move(ctx, nil); err != nil {
			return err
		}
	}
	t.Progress(1)
	return k.waitTeam(1, "exit")
}

// ownData is where this rank has the result, or, as a broadcast's root, the data.
func ownData(w *team.Work) unsafe.Pointer {
	if w.Dst.Ptr != nil {
		return w.Dst.Ptr
	}
	return w.Src.Ptr
}
