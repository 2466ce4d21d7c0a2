package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// call is one rank's view of a collective on which its team, the ranks of its host, has agreed.
type call struct {
	ctx   context.Context
	t     *team.Team
	w     *team.Work
	n, me int // the number of the team's ranks, and this one's
	size  int // of an element
}

func newCall(ctx context.Context, t *team.Team, w *team.Work) call {
	return call{ctx: ctx, t: t, w: w, n: t.Size(), me: t.Rank(), size: w.Type.Size()}
}

// next is the team's i-th rank after this one, ranks with near memory first. Each rank begins with a different peer, so
// that not all access the same one at once.
func (c *call) next(i int) int { return c.t.Near(i) }

// waitTeam waits until all other ranks of the team have done that many steps.
func (c *call) waitTeam(steps uint64, step string) error {
	for i := 1; i < c.n; i++ {
		if err := c.t.WaitProgress(c.ctx, c.next(i), steps, step); err != nil {
			return err
		}
	}
	return nil
}

// div is what the sum is divided by: for averages the number of ranks, or what the work says, else 1.
func (c *call) div() int { return divisor(c.w, c.n) }

func divisor(w *team.Work, ranks int) int {
	switch {
	case w.Red != team.Avg:
		return 1
	case w.Divisor > 0:
		return w.Divisor
	}
	return ranks
}

// reduce combines n elements of srcs in rank order, so that all of the team get the same bits.
func (c *call) reduce(dst unsafe.Pointer, srcs []unsafe.Pointer, n int, stream bool) {
	op := c.w.Red.Op()
	if len(srcs) == 2 && c.w.Red != team.Avg {
		cpu.Reduce(c.w.Type, op, dst, srcs[0], srcs[1], n, stream)
		return
	}
	cpu.ReduceN(c.w.Type, op, dst, srcs, n, c.div(), stream)
}

// load copies n elements of this rank's source, and multiplies them for PreMulSum.
func load(w *team.Work, dst, src unsafe.Pointer, n int) {
	if w.Red == team.PreMulSum {
		cpu.Scale(w.Type, dst, src, n, w.Factor)
		return
	}
	cpu.Copy(dst, src, n*w.Type.Size(), false)
}

const stagingHalf = team.StagingBytes / 2

// streams reports whether a result of that many bytes, which no rank reads as a source, should be written past the
// caches.
func streams(t *team.Team, bytes int) bool { return bytes >= t.Tuning().StreamFrom }
