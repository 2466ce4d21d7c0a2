package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
	"github.com/ubcoll/ubcoll/internal/team"
)

// lanes is what a rank does within its team in an operation between hosts whose buffers peers cannot all access: what they
// cannot access goes through staging memory, in rounds like those of a two-shot. In each round of collecting, the owners
// of lanes combine a chunk of their slices from all sources, or take it from the root of a broadcast, and all ranks do
// in a round of spreading, when they fetch the results.
//
// Both overlap with the exchange: it waits only for chunks that it sends (Need), tells which are final (Final), and
// whenever it waits for another host, Advance does what can be done. That never waits, so teams depend on no network to
// show what they have, and hosts cannot wait for each other around a circle.
type lanes struct {
	twoShot
	root      int // of a broadcast whose data are this team's; -1
	rounds    int
	collected int // rounds of collecting that are done
	shown     bool
	spread    int // rounds of spreading that are done
	told      bool
	begin     int   // of this rank's lane
	final     spans // of this rank's lane

	// The first chunk of each lane in both: the exchange needs the former first, and the latter is final first.
	first, last [team.MostLanes]int
}

// moveStaged is moveDirect where peers cannot access all buffers.
func moveStaged(ctx context.Context, t *team.Team, w *team.Work) error {
	l, err := newLanes(ctx, t, w)
	if err != nil {
		return err
	}
	if t.Hosts.Lane() >= 0 {
		if err := t.Hosts.Move(ctx, l); err != nil {
			return err
		}
	}
	for !l.done() {
		if _, err := l.round(true); err != nil {
			return err
		}
	}
	t.Progress(movesDone)
	if l.stageSrc && (l.stageOut || l.sends() || t.Hosts.Lane() < 0) {
		return nil // peers do not read the caller's memory
	}
	return l.waitTeam(movesDone, "exit")
}

func newLanes(ctx context.Context, t *team.Team, w *team.Work) (*lanes, error) {
	l := &lanes{root: -1, twoShot: twoShot{call: newCall(ctx, t, w), stageSrc: !w.SrcBuf.Direct(), stageOut: !w.DstBuf.Direct()}}
	l.chunk = l.chunkOf
	var err error
	bytes := w.Count * l.size
	if l.srcs, l.dsts, _, err = t.Buffers(bytes, bytes); err != nil {
		return nil, err
	}
	l.stride = stagingHalf / (l.n + 1) &^ 63
	l.per = l.stride / l.size
	l.rounds = (sliceAcross(t, w) + l.per - 1) / l.per
	w.Inner = [2]string{"two-shot", "two-shot"}
	switch {
	case w.Kind == team.KindBroadcast:
		l.root = t.Index(w.Root)
		w.Inner = [2]string{"", "pull"}
	case w.HalfAverage():
		w.Divisor = cpu.Fraction(l.n)
	case w.Red == team.Avg:
		w.Divisor = 1 // the exchange divides
	}
	if lane := t.Hosts.Lane(); lane >= 0 {
		l.begin, _ = laneAcross(t, w, lane)
	}
	if l.rounds > 1 {
		for lane := range t.Hosts.Lanes() {
			l.first[lane], l.last[lane] = l.ends(planAcross(t, w, lane))
		}
	}
	if w.Kind == team.KindBroadcast && l.root < 0 {
		l.collected = l.rounds // there is nothing
	}
	return l, nil
}

// sends reports whether the operation is a broadcast whose data are this team's.
func (l *lanes) sends() bool { return l.root >= 0 }

// done reports whether all rounds are.
func (l *lanes) done() bool { return l.collected == l.rounds && (l.sends() || l.spread == l.rounds) }

// ends are the chunks that an exchange needs first, and that are final first, as far as its first steps tell.
func (l *lanes) ends(p schedule.Plan) (first, last int) {
	c, k := p.Begin(), schedule.Step{}
	needs := false
	for range 64 {
		if !c.Next(&k) {
			break
		}
		if k.Source && !needs {
			first, needs = k.Off/l.per, true
		}
		if k.Last {
			return first, k.Off / l.per
		}
	}
	return first, last
}

// laneOf is the lane of a rank of the team, -1 if it has none.
func laneOf(t *team.Team, rank int) int {
	lanes := t.Hosts.Lanes()
	lane := (rank*lanes + t.Size() - 1) / t.Size()
	if lane < lanes && t.Hosts.Owner(lane) == rank {
		return lane
	}
	return -1
}

// chunkOf is the chunk of a rank's lane in the current round of collecting or, after these, of spreading.
func (l *lanes) chunkOf(round, rank int) (off, n int) {
	lane := laneOf(l.t, rank)
	if lane < 0 {
		return 0, 0
	}
	begin := l.first[lane]
	if round >= l.rounds {
		round, begin = round-l.rounds, l.last[lane]
	}
	off, n = laneAcross(l.t, l.w, lane)
	lo := (round + begin) % l.rounds * l.per
	return off + lo, max(min(l.per, n-lo), 0)
}

// round does the next round, or as much of it as it can without waiting. It reports whether that was all of it.
func (l *lanes) round(wait bool) (over bool, err error) {
	if l.collected < l.rounds {
		return l.collect(wait)
	}
	return l.share(wait)
}

// have reports whether all other ranks of the team have done that many steps. It waits for that, if it may.
func (l *lanes) have(steps uint64, wait bool, step string) (bool, error) {
	if wait {
		return true, l.waitTeam(steps, step)
	}
	for r := range l.n {
		if r != l.me && !l.t.Progressed(r, steps) {
			return false, nil
		}
	}
	return true, nil
}

// room makes sure that nobody reads any more what this rank's staging memory had two rounds ago.
func (l *lanes) room(round int, base uint64, wait bool) (bool, error) {
	if round < 2 {
		return true, nil
	}
	return l.have(base-stepsOfRound, wait, "staging")
}

// collect does a round of collecting.
func (l *lanes) collect(wait bool) (over bool, err error) {
	r := l.collected
	base := uint64(r * stepsOfRound)
	if l.stageSrc && !l.shown && (!l.sends() || l.me == l.root) {
		if ok, err := l.room(r, base, wait); !ok || err != nil {
			return false, err
		}
		l.show(r)
		l.t.Progress(base + stepExposed)
	}
	l.shown = true
	if !wait && !l.canCollect(base) {
		return false, nil
	}
	if l.sends() {
		err = l.take(r, base)
	} else {
		err = l.reduceOwn(r, base)
	}
	if err != nil {
		return false, err
	}
	l.t.Progress(base + stepFetched)
	l.collected, l.shown = r+1, false
	return true, nil
}

// show copies the chunks of a round to staging memory: those that others combine or, of a broadcast, all.
func (l *lanes) show(r int) {
	if !l.sends() {
		l.expose(r)
		return
	}
	for q := range l.n {
		off, n := l.chunkOf(r, q)
		cpu.Copy(l.window(l.me, r, q), unsafe.Add(l.w.Src.Ptr, off*l.size), n*l.size, false)
	}
}

// canCollect reports whether all sources are there.
func (l *lanes) canCollect(base uint64) bool {
	for r := range l.n {
		if r != l.me && l.srcs[r] == nil && (!l.sends() || r == l.root) && !l.t.Progressed(r, base+stepExposed) {
			return false
		}
	}
	return true
}

// take takes a round's chunks from the root.
func (l *lanes) take(r int, base uint64) error {
	if l.me == l.root {
		return nil
	}
	if l.srcs[l.root] == nil {
		if err := l.t.WaitProgress(l.ctx, l.root, base+stepExposed, "fetch"); err != nil {
			return err
		}
	}
	for q := range l.n {
		off, n := l.chunkOf(r, q)
		from := l.window(l.root, r, q)
		if p := l.srcs[l.root]; p != nil {
			from = unsafe.Add(p, off*l.size)
		}
		cpu.Copy(unsafe.Add(l.w.Dst.Ptr, off*l.size), from, n*l.size, false)
	}
	return nil
}

// share does a round of spreading.
func (l *lanes) share(wait bool) (over bool, err error) {
	if l.done() {
		return false, nil
	}
	r := l.rounds + l.spread
	base := uint64(r * stepsOfRound)
	if !l.told {
		off, n := l.chunkOf(r, l.me)
		if !wait && n > 0 && !l.final.has(off-l.begin, n) {
			return false, nil
		}
		if l.stageOut && n > 0 {
			if ok, err := l.room(l.spread, base, wait); !ok || err != nil {
				return false, err
			}
			cpu.Copy(l.window(l.me, r, l.n), unsafe.Add(l.w.Dst.Ptr, off*l.size), n*l.size, false)
		}
		l.t.Progress(base + stepReduced)
		l.told = true
	}
	if ok, err := l.have(base+stepReduced, wait, "all-gather"); !ok || err != nil {
		return false, err
	}
	if err := l.fetch(r, base); err != nil {
		return false, err
	}
	l.t.Progress(base + stepFetched)
	l.spread, l.told = l.spread+1, false
	return true, nil
}

// Need implements team.Local.
func (l *lanes) Need(off, n int) error {
	if l.me == l.root {
		return nil
	}
	begin := l.first[l.t.Hosts.Lane()]
	for c := off / l.per; c <= (off+n-1)/l.per; c++ {
		for r := (c - begin + l.rounds) % l.rounds; l.collected <= r; {
			if _, err := l.collect(true); err != nil {
				return err
			}
		}
	}
	return nil
}

// Final implements team.Local.
func (l *lanes) Final(off, n int) { l.final.add(off, n) }

// Advance implements team.Local.
func (l *lanes) Advance() (busy bool, err error) {
	for over := true; over && err == nil; {
		over, err = l.round(false)
	}
	return !l.done(), err
}
