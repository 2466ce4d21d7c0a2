package hosts

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// reduction is the all-reduce between n hosts: the ring (Patarasuk and Yuan, 2009) as a pipeline. The data is cut into
// rounds of n chunks, one for each host: its slice. In step 0 of a round a host sends its own data of its slice. In
// steps 1 to n-1 it adds its own data to the chunk that it receives; after the last of these a slice is finished. In
// steps n to 2n-2 finished slices go around to all hosts. Rounds overlap: in each turn a host does step 0 of one round,
// step 1 of the round before, and so on. In each turn a host receives what the host before it sent in the previous
// turn. So a host may send 2n-2 items before it needs an item that others send in the same turn; the window holds twice
// as many.
//
// Unfinished chunks land in landing memory, finished ones in the destination. Partial results are sent from the
// destination: if that is also the source, the source's data there is no longer needed then. The finished chunk comes
// to the same place only after the partial result has passed through all other hosts.
type reduction struct {
	s     *Stage
	w     *team.Work
	piece int // in elements; each piece is cut into rounds
	size  int // of an element
	own   unsafe.Pointer
}

// ExpectReduce implements team.Hosts.
func (s *Stage) ExpectReduce(w *team.Work, piece int) {
	if w.Count > 0 {
		s.expect(&reduction{s: s, w: w, piece: piece, size: w.Type.Size()})
	}
}

func (r *reduction) place(k step) unsafe.Pointer {
	if k.t < r.s.n {
		return nil
	}
	return unsafe.Add(r.w.Dst.Ptr, k.off*r.size)
}

func (r *reduction) walk() walk {
	return &reductionWalk{r: r}
}

// reductionWalk enumerates the steps of a reduction, for all pieces or for one.
type reductionWalk struct {
	r       *reduction
	base    int // first element of the piece
	turn, t int
}

// chunk returns how many elements each chunk of a piece has, and how many rounds the piece has.
func (r *reduction) chunk(count int) (chunk, rounds int) {
	n := r.s.n
	chunk = r.s.pipe.chunk / r.size
	if per := (count + n - 1) / n; per < chunk {
		line := 64 / r.size
		chunk = (per + line - 1) / line * line
	}
	return chunk, (count + n*chunk - 1) / (n * chunk)
}

func (k *reductionWalk) next() (step, bool) {
	r, n := k.r, k.r.s.n
	for k.base < r.w.Count {
		count := min(r.piece, r.w.Count-k.base)
		if s, ok := k.inPiece(count, n); ok {
			return s, true
		}
		k.base += count
		k.turn, k.t = 0, 0
	}
	return step{}, false
}

func (k *reductionWalk) inPiece(count, n int) (step, bool) {
	r := k.r
	chunk, rounds := r.chunk(count)
	last := 2*n - 2
	for ; k.turn < rounds+last; k.turn, k.t = k.turn+1, 0 {
		for k.t <= last {
			t := k.t
			k.t++
			round := k.turn - t
			if round < 0 || round >= rounds {
				continue
			}
			slice := ((r.s.me-t)%n + n) % n
			lo := (round*n + slice) * chunk
			if m := min(chunk, count-lo); m > 0 {
				return step{t: t, off: k.base + lo, n: m, bytes: m * r.size, receives: t > 0, sends: t < last}, true
			}
		}
	}
	return step{}, false
}

// AllReduce implements team.Hosts.
func (s *Stage) AllReduce(ctx context.Context, w *team.Work, own unsafe.Pointer, off, n int) error {
	if n == 0 {
		return nil
	}
	r, ok := s.pipe.plan.(*reduction)
	if !ok {
		return errNotExpected
	}
	r.own = own
	steps := reductionWalk{r: r, base: off}
	for {
		k, ok := steps.inPiece(n, s.n)
		if !ok {
			break
		}
		if err := r.do(ctx, k); err != nil {
			return err
		}
	}
	if off+n < w.Count {
		return nil
	}
	return s.ended(ctx)
}

func (r *reduction) do(ctx context.Context, k step) error {
	s, what := r.s, "reduce-scatter"
	if k.t >= s.n {
		what = "all-gather"
	}
	out := unsafe.Add(r.w.Dst.Ptr, k.off*r.size)
	own := unsafe.Add(r.own, k.off*r.size)
	if k.t == 0 {
		if r.multiplies() {
			cpu.Scale(r.w.Type, out, own, k.n, r.w.Factor)
			own = out
		}
		return s.send(ctx, own, k.bytes, what)
	}
	in, err := s.receive(ctx, k, what)
	if err != nil {
		return err
	}
	if k.t < s.n {
		if r.multiplies() {
			cpu.Scale(r.w.Type, out, own, k.n, r.w.Factor)
			own = out
		}
		r.add(out, in, own, k)
	}
	s.taken()
	if !k.sends {
		return nil
	}
	return s.send(ctx, out, k.bytes, what)
}

// multiplies reports whether this rank must multiply its source first. If its host has other ranks, they have done that
// already.
func (r *reduction) multiplies() bool { return r.w.Red == team.PreMulSum && r.s.Team.Size() == 1 }

// Ops maps each reduction to its inner operation, without what comes before and after it.
var Ops = [...]cpu.Op{team.Sum: cpu.Sum, team.Prod: cpu.Prod, team.Min: cpu.Min, team.Max: cpu.Max,
	team.Avg: cpu.Sum, team.PreMulSum: cpu.Sum}

// add combines the received partial result of t hosts with this host's.
//
// For half types it keeps averages instead of sums: a sum may overflow the type where the average does not.
func (r *reduction) add(out, in, own unsafe.Pointer, k step) {
	w := r.w
	if w.Red == team.Avg && Halves(w.Type) {
		before := 0
		for i := 1; i <= k.t; i++ {
			before += r.s.On((r.s.me - i + r.s.n) % r.s.n)
		}
		cpu.Weigh(w.Type, out, in, own, k.n, before, r.s.On(r.s.me))
		return
	}
	if w.Red == team.Avg && k.t == r.s.n-1 {
		srcs := [2]unsafe.Pointer{in, own}
		cpu.ReduceN(w.Type, cpu.Sum, out, srcs[:], k.n, r.s.ranks, false)
		return
	}
	cpu.Reduce(w.Type, Ops[w.Red], out, in, own, k.n, false)
}

// Halves reports whether t is a half type.
func Halves(t dtype.Type) bool { return t == dtype.Float16 || t == dtype.BFloat16 }
