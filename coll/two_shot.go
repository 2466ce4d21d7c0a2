package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// directSlice is how many bytes of a slice one round of a two-shot handles if nothing is staged.
const directSlice = 256 << 10

// twoShot runs in rounds of two steps. First each rank reduces its slice of the round from all sources; then each rank
// that wants the result fetches the others' slices. It works with any mix of direct and staged buffers. A rank whose
// source is staged first copies what the others will read into its staging memory. A rank whose result cannot be read
// in place writes it to its staging memory, too. The two halves of the staging memory alternate between rounds.
type twoShot struct {
	call
	srcs, dsts []unsafe.Pointer
	stageSrc   bool // this rank's source is staged
	stageOut   bool // this rank's slice is fetched from its staging memory
	// chunk, if it is not nil, says what slices are: of a round and a rank.
	chunk  func(round, rank int) (off, n int)
	per    int // elements of a slice in one round
	stride int // bytes of a slice in staging memory
}

// Each round has three steps of progress.
const (
	stepExposed = 1 + iota
	stepReduced
	stepFetched
	stepsOfRound = stepFetched
)

func (c *call) twoShot(srcs, dsts []unsafe.Pointer, how team.BufferLayout) error {
	c.w.Algorithm = "two-shot"
	t := twoShot{call: *c, srcs: srcs, dsts: dsts, stageSrc: !c.w.SrcBuf.Direct()}
	staged := !how.AllSrc
	switch c.w.Kind {
	case team.KindAllReduce:
		t.stageOut = !c.w.DstBuf.Direct()
		staged = staged || !how.AllDst
	case team.KindReduce:
		t.stageOut = c.me != c.w.Root
		staged = true
	}
	t.stride = directSlice
	if staged {
		t.stride = stagingHalf / (c.n + 1) &^ 63
	}
	t.per = t.stride / c.size
	share := c.w.Count // elements of a slice in all
	if c.w.Kind != team.KindReduceScatter {
		share = (share + c.n - 1) / c.n
	}
	rounds := (share + t.per - 1) / t.per
	for r := 0; r < rounds; r++ {
		if err := t.round(r); err != nil {
			return err
		}
	}
	if t.stageSrc && (t.stageOut || c.w.Kind != team.KindAllReduce) {
		return nil // peers do not read the caller's memory
	}
	return c.waitTeam(uint64(rounds*stepsOfRound), "exit")
}

// slice is slice q of round r: n elements, from element off of the source and from element dst of the destination.
func (t *twoShot) slice(r, q int) (off, dst, n int) {
	count := t.w.Count
	if t.chunk != nil {
		off, n = t.chunk(r, q)
		return off, off, n
	}
	if t.w.Kind == team.KindReduceScatter {
		lo := r * t.per
		return q*count + lo, lo, min(t.per, count-lo)
	}
	base := r * t.n * t.per
	rest := min(t.n*t.per, count-base)
	sl := min(alignedSlice(rest, t.n, t.size), t.per)
	lo := min(q*sl, rest)
	return base + lo, base + lo, min(lo+sl, rest) - lo
}

// window is slice q of a round in a rank's staging memory; slice n holds the rank's result.
func (t *twoShot) window(rank, r, q int) unsafe.Pointer {
	return unsafe.Add(t.t.Staging(rank), r&1*stagingHalf+q*t.stride)
}

func (t *twoShot) round(r int) error {
	base := uint64(r * stepsOfRound)
	if (t.stageSrc || t.stageOut) && r >= 2 {
		if err := t.waitTeam(base-stepsOfRound, "staging"); err != nil {
			return err
		}
	}
	if t.stageSrc {
		t.expose(r)
		t.t.Progress(base + stepExposed)
	}
	if err := t.reduceOwn(r, base); err != nil {
		return err
	}
	t.t.Progress(base + stepReduced)
	if t.w.Kind == team.KindAllReduce || t.w.Kind == team.KindReduce && t.me == t.w.Root {
		if err := t.fetch(r, base); err != nil {
			return err
		}
	}
	t.t.Progress(base + stepFetched)
	return nil
}

func (t *twoShot) expose(r int) {
	for q := 0; q < t.n; q++ {
		if off, _, n := t.slice(r, q); n > 0 && (q != t.me || t.w.Red == team.PreMulSum) {
			load(t.w, t.window(t.me, r, q), unsafe.Add(t.w.Src.Ptr, off*t.size), n)
		}
	}
}

func (t *twoShot) reduceOwn(r int, base uint64) error {
	off, dst, n := t.slice(r, t.me)
	if n <= 0 {
		return nil
	}
	srcs := t.t.Scratch()
	for p := range srcs {
		switch {
		case p == t.me && t.w.Red == team.PreMulSum:
			srcs[p] = t.window(p, r, t.me)
		case t.srcs[p] != nil:
			srcs[p] = unsafe.Add(t.srcs[p], off*t.size)
		default:
			if err := t.t.WaitProgress(t.ctx, p, base+stepExposed, "reduce-scatter"); err != nil {
				return err
			}
			srcs[p] = t.window(p, r, t.me)
		}
	}
	if t.w.Kind == team.KindReduce && t.stageOut {
		t.reduce(t.window(t.me, r, t.n), srcs, n, false)
		return nil
	}
	out := unsafe.Add(t.w.Dst.Ptr, dst*t.size)
	if t.stageOut && t.chunk == nil {
		outs := [2]unsafe.Pointer{out, t.window(t.me, r, t.n)}
		cpu.ReduceMulti(t.w.Type, t.w.Red.Op(), outs[:], srcs, n, t.div(), false)
		return nil
	}
	t.reduce(out, srcs, n, false)
	return nil
}

func (t *twoShot) fetch(r int, base uint64) error {
	for i := 1; i < t.n; i++ {
		p := t.next(i)
		_, dst, n := t.slice(r, p)
		if n <= 0 {
			continue
		}
		if err := t.t.WaitProgress(t.ctx, p, base+stepReduced, "all-gather"); err != nil {
			return err
		}
		var from unsafe.Pointer
		if t.dsts[p] != nil {
			from = unsafe.Add(t.dsts[p], dst*t.size)
		} else {
			from = t.window(p, r, t.n)
		}
		cpu.Copy(unsafe.Add(t.w.Dst.Ptr, dst*t.size), from, n*t.size, false)
	}
	return nil
}
