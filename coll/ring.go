package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// The ring all-reduce of the team's ranks (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009), as a chain of reads: each rank reads the partial result of its left neighbour, straight from
// the neighbour's destination, adds its own source, and writes its own destination.
//
// The data is cut into rounds of n slices, and each slice into chunks. In step 0 of a round a rank offers its own slice
// unchanged. In steps 1 to n-1 it reduces; step n-1 gives a finished slice. In steps n to 2n-2 it copies finished
// slices on. One (step, chunk) is an item. A rank announces each item that it has done, and item i needs the left
// neighbour's item of the same chunk one step earlier. So chunks flow around the ring in a pipeline, and no step needs
// a barrier.
//
// A rank offers data in its own registered buffer, or, if the buffer is not registered, in its staging memory, a window
// of ringWindow chunks. Then the rank must not get ahead of its right neighbour by more than the window. The window
// must hold more than one step, or the ring would deadlock.
const (
	ringChunk  = 64 << 10
	ringChunks = 4 // in a slice, at most
	ringWindow = team.StagingBytes / ringChunk
)

type ring struct {
	ctx   context.Context
	t     *team.Team
	w     *team.Work
	size  int // of an element
	n     int // the team's ranks
	left  int
	right int

	src, dst         unsafe.Pointer // this rank's
	leftSrc, leftDst unsafe.Pointer // nil if the left neighbour stages it
	stageSrc         bool           // this rank stages what it offers from its source; stageDst: from its destination
	stageDst         bool

	// The current round.
	base   int    // first element
	count  int    // elements
	slice  int    // elements of a slice
	chunk  int    // elements of a chunk
	chunks int    // in a slice
	first  uint64 // number of its first item
	cursor uint64 // items done
}

func runRing(ctx context.Context, t *team.Team, w *team.Work) error {
	if w.Count == 0 {
		return nil
	}
	n := t.Size()
	r := ring{ctx: ctx, t: t, w: w, size: w.Type.Size(), n: n, left: (t.Rank() + n - 1) % n, right: (t.Rank() + 1) % n,
		src: w.Src.Ptr, dst: w.Dst.Ptr, stageSrc: !w.SrcBuf.Direct(), stageDst: !w.DstBuf.Direct()}
	var err error
	if r.leftSrc, err = t.Source(r.left, 0, w.Src.Bytes()); err != nil {
		return err
	}
	if r.leftDst, err = t.Destination(r.left, 0, w.Dst.Bytes()); err != nil {
		return err
	}
	r.chunk = ringChunk / r.size
	round := n * ringChunks * r.chunk
	for r.base < w.Count {
		r.count = min(round, w.Count-r.base)
		r.slice = (r.count + n - 1) / n
		r.chunks = (r.slice + r.chunk - 1) / r.chunk
		if err := r.round(); err != nil {
			return err
		}
		r.base += r.count
		r.first += uint64((2*n - 1) * r.chunks)
	}
	if r.stageSrc && r.stageDst {
		return nil // the window is next written after the neighbour's next descriptor, when it has read it
	}
	// When the right neighbour has done its last item, it has read this rank's buffers.
	return t.WaitProgress(ctx, r.right, r.cursor, "exit")
}

func (r *ring) round() error {
	for step := 0; step < 2*r.n-1; step++ {
		s := r.t.Rank() - step // the slice that this step works on
		for s < 0 {
			s += r.n
		}
		for k := 0; k < r.chunks; k++ {
			lo := min(s*r.slice+k*r.chunk, r.count)
			hi := min(s*r.slice+min((k+1)*r.chunk, r.slice), r.count)
			if err := r.item(step, r.base+lo, max(hi-lo, 0)); err != nil {
				return err
			}
			r.cursor++
			r.t.Progress(r.cursor)
		}
	}
	return nil
}

// item does one chunk of one step: n elements, from element lo on.
func (r *ring) item(step, lo, n int) error {
	if n == 0 {
		return nil // nothing to wait for: the neighbour's item is empty too
	}
	off := lo * r.size
	last := step == 2*r.n-2 // no rank reads the result of this step
	out := unsafe.Add(r.dst, off)
	if step == 0 {
		if !r.stageSrc {
			return nil // the right neighbour reads the source itself
		}
		if err := r.room(); err != nil {
			return err
		}
		cpu.Copy(r.window(r.t.Rank(), r.cursor), unsafe.Add(r.src, off), n*r.size, false)
		return nil
	}
	staged := r.stageDst && !last
	if staged {
		if err := r.room(); err != nil {
			return err
		}
	}
	need := r.cursor - uint64(r.chunks) // the left neighbour's item
	if err := waitLeft(r.ctx, r.t, r.left, need+1, stepName(step, r.n)); err != nil {
		return err
	}
	in := r.offered(step-1, off, need)
	switch {
	case step < r.n-1: // a partial result
		if staged {
			out = r.window(r.t.Rank(), r.cursor)
		}
		r.reduce(out, in, off, n, step)
	case step == r.n-1: // a finished slice
		r.reduce(out, in, off, n, step)
		if staged {
			cpu.Copy(r.window(r.t.Rank(), r.cursor), out, n*r.size, false)
		}
	default:
		cpu.Copy(out, in, n*r.size, false)
		if staged {
			cpu.Copy(r.window(r.t.Rank(), r.cursor), out, n*r.size, false)
		}
	}
	return nil
}

// waitLeft waits for the left neighbour. A test replaces it to show that a missing wait is noticed.
var waitLeft = func(ctx context.Context, t *team.Team, left int, items uint64, step string) error {
	return t.WaitProgress(ctx, left, items, step)
}

func stepName(step, n int) string {
	if step < n {
		return "reduce-scatter"
	}
	return "all-gather"
}

// offered is the address of the left neighbour's item of the given step.
func (r *ring) offered(step, off int, item uint64) unsafe.Pointer {
	p := r.leftDst
	if step == 0 {
		p = r.leftSrc
	}
	if p == nil {
		return r.window(r.left, item)
	}
	return unsafe.Add(p, off)
}

func (r *ring) window(rank int, item uint64) unsafe.Pointer {
	return unsafe.Add(r.t.Staging(rank), int(item%ringWindow)*ringChunk)
}

// room waits until the right neighbour has read the item whose place in the window the next item takes.
func (r *ring) room() error {
	if r.cursor < ringWindow {
		return nil
	}
	old := r.cursor - ringWindow
	step := uint64(r.chunks)
	if old < r.first {
		step = ringChunks // an item of an earlier round: only the last round has shorter slices
	}
	return r.t.WaitProgress(r.ctx, r.right, old+step+1, "staging")
}

// reduce adds this rank's source to in, the combined sources of step ranks.
//
// Averages of half types travel as fractions of the sum: 1/2 of a sum over two ranks, 1/4 over three or four, and so on.
func (r *ring) reduce(out, in unsafe.Pointer, off, n, step int) {
	own := unsafe.Add(r.src, off)
	div, last := divisor(r.w, r.n), step == r.n-1
	switch {
	case r.w.HalfAverage():
		if !last {
			div = cpu.Fraction(step + 1)
		}
		cpu.AddFractions(r.w.Type, out, in, own, n, step, 1, div)
	case last && div > 1:
		srcs := [2]unsafe.Pointer{in, own}
		cpu.ReduceN(r.w.Type, r.w.Red.Op(), out, srcs[:], n, div, false)
	default:
		cpu.Reduce(r.w.Type, r.w.Red.Op(), out, in, own, n, false)
	}
}
