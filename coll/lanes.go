package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// moveStaged is moveDirect where peers cannot access all buffers: what they cannot access goes through staging memory. The
// owners of lanes combine their slices from all sources, exchange them, and all ranks fetch the results. The rounds are
// those of a two-shot, in which a slice is that of its rank's lane.
func moveStaged(ctx context.Context, t *team.Team, w *team.Work) error {
	s, err := newStagedLanes(ctx, t, w)
	if err != nil {
		return err
	}
	root := t.Index(w.Root)
	sends := w.Kind == team.KindBroadcast && root >= 0 // the data are the root's, which is of this host
	switch {
	case sends && s.me == root:
		err = s.show()
	case sends:
		err = s.take(root)
	case w.Kind != team.KindBroadcast:
		err = s.collect()
	}
	if err == nil && t.Hosts.Lane() >= 0 {
		err = t.Hosts.Move(ctx)
	}
	if err == nil && !sends {
		err = s.spread()
	}
	if err != nil {
		return err
	}
	s.t.Progress(movesDone)
	if s.stageSrc && (s.stageOut || sends || t.Hosts.Lane() < 0) {
		return nil // peers do not read the caller's memory
	}
	return s.waitTeam(movesDone, "exit")
}

func newStagedLanes(ctx context.Context, t *team.Team, w *team.Work) (*twoShot, error) {
	s := &twoShot{call: newCall(ctx, t, w), ofLanes: true, stageSrc: !w.SrcBuf.Direct(), stageOut: !w.DstBuf.Direct()}
	var err error
	bytes := w.Count * s.size
	if s.srcs, s.dsts, _, err = t.Buffers(bytes, bytes); err != nil {
		return nil, err
	}
	s.stride = stagingHalf / (s.n + 1) &^ 63
	s.per = s.stride / s.size
	w.Inner = [2]string{"two-shot", "two-shot"}
	switch {
	case w.Kind == team.KindBroadcast:
		w.Inner = [2]string{"", "pull"}
	case w.HalfAverage():
		w.Divisor = cpu.Fraction(s.n)
	case w.Red == team.Avg:
		w.Divisor = 1 // the exchange divides
	}
	return s, nil
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

// laneSlice is slice of a rank's lane.
func (t *twoShot) laneSlice(r, rank int) (off, n int) {
	lane := laneOf(t.t, rank)
	if lane < 0 {
		return 0, 0
	}
	off, n = laneAcross(t.t, t.w, lane)
	lo := r * t.per
	return off + lo, min(t.per, n-lo)
}

// laneRounds is how many rounds the slices of lanes take.
func (t *twoShot) laneRounds() int { return (sliceAcross(t.t, t.w) + t.per - 1) / t.per }

// collect combines the sources of the team's ranks in the destinations of those that own lanes.
func (t *twoShot) collect() error {
	for r := range t.laneRounds() {
		base := uint64(r * stepsOfRound)
		if t.stageSrc {
			if r >= 2 {
				if err := t.waitTeam(base-stepsOfRound, "staging"); err != nil {
					return err
				}
			}
			t.expose(r)
			t.t.Progress(base + stepExposed)
		}
		if err := t.reduceOwn(r, base); err != nil {
			return err
		}
		t.t.Progress(base + stepFetched)
	}
	return nil
}

// spread brings the results from the owners of lanes to all.
func (t *twoShot) spread() error {
	rounds := t.laneRounds()
	for r := range rounds {
		base := uint64((rounds + r) * stepsOfRound) // after those of collect
		if off, _, n := t.slice(r, t.me); t.stageOut && n > 0 {
			if r >= 2 {
				if err := t.waitTeam(base-stepsOfRound, "staging"); err != nil {
					return err
				}
			}
			cpu.Copy(t.window(t.me, r, t.n), unsafe.Add(t.w.Dst.Ptr, off*t.size), n*t.size, false)
		}
		t.t.Progress(base + stepReduced)
		if err := t.fetch(r, base); err != nil {
			return err
		}
		t.t.Progress(base + stepFetched)
	}
	return nil
}

// showRounds is in how many rounds, of so many elements, a staged source of a broadcast is shown.
func (t *twoShot) showRounds() (rounds, per int) {
	per = stagingHalf / t.size
	return (t.w.Count + per - 1) / per, per
}

// show shows the team this rank's source.
func (t *twoShot) show() error {
	rounds, per := t.showRounds()
	for r := 0; t.stageSrc && r < rounds; r++ {
		base := uint64(r * stepsOfRound)
		if r >= 2 {
			if err := t.waitTeam(base-stepsOfRound, "staging"); err != nil {
				return err
			}
		}
		cpu.Copy(t.window(t.me, r, 0), unsafe.Add(t.w.Src.Ptr, r*per*t.size), min(per, t.w.Count-r*per)*t.size, false)
		t.t.Progress(base + stepExposed)
	}
	return nil
}

// take fetches what rank root shows.
func (t *twoShot) take(root int) error {
	if from := t.srcs[root]; from != nil {
		cpu.Copy(t.w.Dst.Ptr, from, t.w.Count*t.size, streams(t.t, t.w.Dst.Bytes()))
		return nil
	}
	rounds, per := t.showRounds()
	for r := range rounds {
		base := uint64(r * stepsOfRound)
		if err := t.t.WaitProgress(t.ctx, root, base+stepExposed, "fetch"); err != nil {
			return err
		}
		cpu.Copy(unsafe.Add(t.w.Dst.Ptr, r*per*t.size), t.window(root, r, 0), min(per, t.w.Count-r*per)*t.size, false)
		t.t.Progress(base + stepFetched)
	}
	return nil
}
