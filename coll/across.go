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
	h, bytes := t.Hosts, w.Count*w.Type.Size()
	switch {
	case bytes <= h.Contribution():
		if w.Path = &acrossSmallPath; w.Kind == team.KindAllReduce {
			w.Path = &acrossFoldPath
		}
		if bytes > team.PayloadSize && t.Size() > 1 {
			w.Eager.Bytes = bytes
		}
		w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with what the hosts say", "its own rank alone writes it"
	default:
		w.Lanes = h.Lanes()
		w.Path = &acrossPaths[wayAcross(t, w)]
	}
}

// wayAcross is how data travel between hosts that do not travel with the proposals.
func wayAcross(t *team.Team, w *team.Work) schedule.Way {
	ways := schedule.Reducing
	if w.Kind == team.KindBroadcast {
		ways = schedule.Sending
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

// contribute writes the combined sources of the team to b.
func contribute(t *team.Team, w *team.Work, b []byte) int {
	bytes := w.Count * w.Type.Size()
	if bytes == 0 {
		return 0
	}
	to := unsafe.Pointer(&b[0])
	switch {
	case w.Kind == team.KindBroadcast:
		root := t.Index(w.Root)
		if root < 0 {
			return 0
		}
		from := w.Src.Ptr
		if t.Size() > 1 {
			from = slot(t, w, root)
		}
		cpu.Copy(to, from, bytes, false)
	case t.Size() == 1:
		load(w, to, w.Src.Ptr, w.Count)
	default:
		srcs := t.Scratch()
		for r := range srcs {
			srcs[r] = slot(t, w, r)
		}
		div := 1
		if w.HalfAverage() {
			div = cpu.Fraction(t.Size())
		}
		cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, w.Count, div, false)
	}
	return bytes
}

// conclude writes the result to where the team fetches it, or, if the leader is alone, to its destination.
func conclude(t *team.Team, w *team.Work, all func(host int) []byte) error {
	bytes := w.Count * w.Type.Size()
	to := t.Outcome(bytes)
	if t.Size() == 1 {
		to = w.Dst.Ptr
	}
	if bytes == 0 || to == nil {
		return nil
	}
	from := t.Hosts.Of(w.Root)
	for h := range t.Hosts.Size() {
		want := bytes
		if w.Kind == team.KindBroadcast && h != from {
			want = 0
		}
		if n := len(all(h)); n != want {
			return fmt.Errorf("host %d has sent %d bytes, not %d: %w", h, n, want, fault.ErrMismatch)
		}
	}
	if w.Kind == team.KindBroadcast {
		cpu.Copy(to, unsafe.Pointer(&all(from)[0]), bytes, false)
		return nil
	}
	combine(t.Hosts, w, to, all)
	return nil
}

// combine combines the hosts' contributions in the order of the hosts, so that all get the same bits.
func combine(h team.Hosts, w *team.Work, to unsafe.Pointer, all func(host int) []byte) {
	srcs := h.Scratch()
	for i := range srcs {
		srcs[i] = unsafe.Pointer(&all(i)[0])
	}
	div := 1
	if w.Red == team.Avg {
		if div = h.Ranks(); w.HalfAverage() && h.Most() > 1 {
			combineFractions(h, w, to, srcs)
			return
		}
	}
	cpu.ReduceN(w.Type, w.Red.Op(), to, srcs, w.Count, div, false)
}

// combineFractions is combine where hosts of several ranks have sent fractions of sums.
func combineFractions(h team.Hosts, w *team.Work, to unsafe.Pointer, srcs []unsafe.Pointer) {
	ranks := h.On(0)
	for i := 1; i < len(srcs); i++ {
		more := h.On(i)
		div := cpu.Fraction(ranks + more)
		if i == len(srcs)-1 {
			div = h.Ranks()
		}
		cpu.AddFractions(w.Type, to, srcs[0], srcs[i], w.Count, ranks, more, div)
		srcs[0] = to
		ranks += more
	}
}

func takeOutcome(_ context.Context, t *team.Team, w *team.Work) error {
	if bytes := w.Count * w.Type.Size(); bytes > 0 && w.Dst.Ptr != nil && t.Size() > 1 {
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
