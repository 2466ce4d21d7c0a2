package hosts

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The all-reduce between hosts is the ring (Patarasuk and Yuan, 2009), as a pipeline. The data is cut into rounds, one
// chunk for each host: its slice. In step 0 of a round a host sends its own chunk of its slice; in steps 1 to n-1 it adds
// its own data to what has come, the last of which gives a finished slice; in steps n to 2n-2 finished slices go on, to
// where they belong. Rounds follow each other one step behind: in each turn a host does step 0 of one round, step 1 of
// the round before, and so on. What a host receives in one turn, the host before it has sent in its turn before. So a
// host sends 2n-2 items before it needs one of the same turn of the others, which the window has to hold, twice.
//
// What has not been finished lands in landing memory, and what is finished in the destination. A partial result is sent
// from the destination, too, where the own source, if it is the same memory, is not needed any more by then; the finished
// one comes to the same place only after that has reached all others.
type reduction struct {
	s     *Stage
	w     *team.Work
	piece int // elements: what comes together is cut into rounds
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

// reductionWalk is the steps of a reduction, of all pieces or of one.
type reductionWalk struct {
	r       *reduction
	base    int // first element of the piece
	turn, t int
}

// chunk is how many elements a chunk of a piece has, and how many rounds there are.
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

// multiplies reports whether this rank's source is to be multiplied first: where there are others on its host, that has
// been done.
func (r *reduction) multiplies() bool { return r.w.Red == team.PreMulSum && r.s.Team.Size() == 1 }

// Ops are the reductions without what comes before and after them.
var Ops = [...]cpu.Op{team.Sum: cpu.Sum, team.Prod: cpu.Prod, team.Min: cpu.Min, team.Max: cpu.Max,
	team.Avg: cpu.Sum, team.PreMulSum: cpu.Sum}

// add combines what has come, of t hosts, with this host's.
//
// Averages of half types are carried as such: a sum may be too large for the type where the average is not.
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

// Halves reports whether a type is a half type.
func Halves(t dtype.Type) bool { return t == dtype.Float16 || t == dtype.BFloat16 }
