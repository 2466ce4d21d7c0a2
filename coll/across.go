package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/model"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Collectives of a communicator that spans hosts. Small data travels with the proposals by which the hosts agree. Larger data
// of all-reduces and broadcasts is cut into slices, one for each lane, whose owners on all hosts exchange it; that of all others
// consists of blocks, see there. Where peers of
// its host can access all buffers, an owner combines its team's sources piece by piece, as the exchange needs them, and
// writes each piece of the result to its whole team; it begins while the hosts agree. Otherwise the slices come to their
// owners through staging memory, and the results to all: see moveStaged.

var (
	acrossFoldPath   = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Folds: true, Conclude: conclude, Run: takeOutcome}
	acrossPartPath   = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Folds: true, Folded: takeFold, Conclude: conclude, Run: takeOutcome}
	acrossSmallPath  = team.Path{Name: "exchange", Offer: offerToLeader, Contribute: contribute, Conclude: conclude, Run: takeOutcome}
	acrossRoutedPath = team.Path{Name: "exchange", Route: newRoutes}
	acrossPaths      = [...]team.Path{schedule.Ring: acrossPath(schedule.Ring), schedule.Doubling: acrossPath(schedule.Doubling),
		schedule.Halving: acrossPath(schedule.Halving), schedule.Chain: acrossPath(schedule.Chain), schedule.Tree: acrossPath(schedule.Tree),
		schedule.Scatter: acrossPath(schedule.Scatter)}
)

func acrossPath(way schedule.Way) team.Path {
	return team.Path{Name: way.String(), Acquire: acquireAcross, Exchange: exchangeAcross, Run: runAcross}
}

// chooseAcross is choosePath between hosts: a pure function of the signature, the hosts, and how many ranks they have.
func chooseAcross(t *team.Team, w *team.Work) {
	l := t.Hosts.Layout()
	if isVector(w.Kind) {
		w.Lanes, w.Path = l.Lanes, &countedPath
		return
	}
	if way := model.Small(l, opOf(w, w.Count)); way != 0 {
		w.Path = smallPath(w, l, way)
		if source := eagerBytes(t, w); source > team.PayloadSize && t.Size() > 1 {
			w.Eager.Bytes = source
		}
		w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with what the hosts say", "its own rank alone writes it"
		return
	}
	if chooseCollNet(t, w) {
		return
	}
	w.Lanes = l.Lanes
	switch way := wayAcross(t, w, w.Count); w.Kind {
	case team.KindAllReduce, team.KindBroadcast:
		w.Path = &acrossPaths[way]
	default:
		w.Path = &blockPaths[way]
	}
}

// chooseCollNet reports whether a CollNet plugin does the operation, and if so sets that.
func chooseCollNet(t *team.Team, w *team.Work) bool {
	l := t.Hosts.Layout()
	if l.CollNet.Step == 0 {
		return false
	}
	can := l.CollNet.Does(w)
	if !can || !model.ByCollNet(l, t.Costs(), t.Algorithm(), opOf(w, w.Count)) {
		w.NotCollNet = !can
		return false
	}
	w.Path = &collNetPath
	return true
}

// smallPath is how data travel with the proposals.
func smallPath(w *team.Work, l *team.Layout, way schedule.Way) *team.Path {
	switch {
	case way == schedule.Routed:
		return &acrossRoutedPath
	case w.Kind == team.KindAllReduce:
		return &acrossFoldPath
	case isReduction(w.Kind) && l.Hosts > 2:
		return &acrossPartPath
	}
	return &acrossSmallPath
}

// opOf is the running operation, or a part of it that has so many elements, as its way depends on it.
func opOf(w *team.Work, count int) model.Op {
	return model.Op{Kind: w.Kind, Count: count, Size: w.Type.Size()}
}

// wayAcross is how data travel between hosts that do not travel with the proposals.
func wayAcross(t *team.Team, w *team.Work, count int) schedule.Way {
	return model.Way(t.Hosts.Layout(), t.Costs(), t.Algorithm(), opOf(w, count))
}

// sliceAcross is how many elements each lane moves, but for the last ones.
func sliceAcross(t *team.Team, w *team.Work) int {
	return model.Slice(t.Hosts.Layout(), w.Count, w.Type.Size())
}

// laneAcross is which elements a lane moves: n from off on.
func laneAcross(t *team.Team, w *team.Work, lane int) (off, n int) {
	slice := sliceAcross(t, w)
	off = min(lane*slice, w.Count)
	return off, min(slice, w.Count-off)
}

// acquireAcross is acquire. In a team of one rank nobody else accesses the buffers, but for RDMA devices.
func acquireAcross(t *team.Team, w *team.Work) error {
	if t.Size() == 1 && !t.Hosts.Link().RDMA {
		return nil
	}
	return acquire(t, w)
}

// planAcross is what this host does on a lane.
func planAcross(t *team.Team, w *team.Work, lane int) schedule.Plan {
	h, size := t.Hosts, w.Type.Size()
	_, n := laneAcross(t, w, lane)
	p := schedule.Plan{Way: wayAcross(t, w, w.Count), Hosts: h.Size(), Me: h.Host(), Root: h.Of(w.Root), Count: n, Line: 64 / size}
	p.Item = max(t.Costs().Item(p.Way, p.Hosts, n*size)/size, 1)
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
