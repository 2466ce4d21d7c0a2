package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// call is a collective on which a team, the ranks of this host, has agreed, as one of them sees it.
type call struct {
	ctx   context.Context
	t     *team.Team
	w     *team.Work
	n, me int // the team's ranks, and this one among them
	size  int // of an element
}

func newCall(ctx context.Context, t *team.Team, w *team.Work) call {
	return call{ctx: ctx, t: t, w: w, n: t.Size(), me: t.Rank(), size: w.Type.Size()}
}

// next is the team's i-th rank after this one, those whose memory is near first: ranks begin with different peers, so
// that they do not all crowd around one.
func (k *call) next(i int) int { return k.t.Near(i) }

// waitTeam waits until the team's other ranks have done so many steps.
func (k *call) waitTeam(steps uint64, step string) error {
	for i := 1; i < k.n; i++ {
		if err := k.t.WaitProgress(k.ctx, k.next(i), steps, step); err != nil {
			return err
		}
	}
	return nil
}

// cpuOps are the reductions without what comes before and after them.
var cpuOps = [...]cpu.Op{team.Sum: cpu.Sum, team.Prod: cpu.Prod, team.Min: cpu.Min, team.Max: cpu.Max,
	team.Avg: cpu.Sum, team.PreMulSum: cpu.Sum}

// div is what the sum is divided by: the number of ranks in it.
func (k *call) div() int {
	if k.w.Red == team.Avg {
		return k.n
	}
	return 1
}

// reduce combines n elements of srcs, in rank order so that all of the team get the same bits.
func (k *call) reduce(dst unsafe.Pointer, srcs []unsafe.Pointer, n int, stream bool) {
	op := cpuOps[k.w.Red]
	if len(srcs) == 2 && k.w.Red != team.Avg {
		cpu.Reduce(k.w.Type, op, dst, srcs[0], srcs[1], n, stream)
		return
	}
	cpu.ReduceN(k.w.Type, op, dst, srcs, n, k.div(), stream)
}

// load copies n elements of this rank's source, multiplied if the operation says so.
func load(w *team.Work, dst, src unsafe.Pointer, n int) {
	if w.Red == team.PreMulSum {
		cpu.Scale(w.Type, dst, src, n, w.Factor)
		return
	}
	cpu.Copy(dst, src, n*w.Type.Size(), false)
}

const stagingHalf = team.StagingBytes / 2

// streams reports whether a result of so many bytes, which is no rank's source, should be written past the caches.
func streams(t *team.Team, bytes int) bool { return bytes >= t.Tuning().StreamFrom }
