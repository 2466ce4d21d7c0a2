package engine

import (
	"errors"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/cuda/kernels"
)

// A reduction with copies: copy engines, which fill the link better than kernels do, bring each rank's part of every
// other rank's slice into that one's staging memory, a window at a time, and a kernel for each window reduces them and
// writes the results to their destinations. The first kernel only agrees, so that nobody's staging memory is written
// that is still in use; a rank's kernel of a window runs after its copies of that window, and tells the peers so; and
// copies wait for the kernel of four windows ago, which has heard that all peers have read them.

// ahead is how many windows' copies are queued before the kernel of the first one.
const ahead = 3

// windowBuffers is how many windows have staging memory.
const windowBuffers = 4

// side is a stream for copies, and what orders it and the operation's own. Only one operation uses it at a time, or one
// capture.
type side struct {
	cu         *cuda.Stream
	agreed     *cuda.Event
	sent, done [windowBuffers]*cuda.Event // a window's copies; its kernel
}

func newSide(ctx *cuda.Context) (*side, error) {
	s := &side{}
	var err error
	if s.cu, err = ctx.NewStream(); err != nil {
		return nil, err
	}
	for _, e := range s.events() {
		if *e, err = ctx.NewEvent(false); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s *side) events() []**cuda.Event {
	all := []**cuda.Event{&s.agreed}
	for i := range windowBuffers {
		all = append(all, &s.sent[i], &s.done[i])
	}
	return all
}

func (s *side) close() error {
	errs := []error{s.cu.Close()}
	for _, e := range s.events() {
		if *e != nil {
			errs = append(errs, (*e).Close())
		}
	}
	return errors.Join(errs...)
}

// beside is the side for what is queued now; a capture of somebody else's has one of its own, for as long as it lasts,
// which the host does not learn.
func (d *device) beside(captured bool) (*side, error) {
	if len(d.sides) > 0 && !captured {
		return d.sides[0], nil
	}
	s, err := newSide(d.gpu.ctx)
	if err != nil {
		return nil, err
	}
	d.sides = append(d.sides, s)
	if last := len(d.sides) - 1; !captured {
		d.sides[0], d.sides[last] = d.sides[last], d.sides[0]
	}
	return s, nil
}

// slicing is which part of a reduction's data is whose, as the kernels have it.
type slicing struct {
	bytes, stride int
}

func slicingOf(w *Work, ranks int) slicing {
	n := w.Count * w.Type.Size()
	if w.Kind == KindReduceScatter {
		return slicing{n * ranks, n}
	}
	return slicing{n, ((n+ranks-1)/ranks + 15) &^ 15}
}

func (s slicing) begin(r int) int { return min(r*s.stride, s.bytes) }

// leastWindows is how many there are at least, so that copies and kernels work at the same time.
const leastWindows = 6

// copies sets what makes p an operation with copies.
func (s slicing) copies(p *kernels.Params) {
	longest := min(s.stride, s.bytes)
	if longest == 0 {
		return
	}
	window := min(kernels.Window(int(p.Ranks)), (longest/leastWindows+128)&^127)
	p.Window, p.Turns = uint32(window), uint32((longest+window-1)/window)
}

// withCopies queues the operation that l is on cu, which waits for b in the end.
func (l *launching) withCopies(cu *cuda.Stream, b *side) error {
	p, shape := &l.params.Params, l.shape
	turns := int(p.Turns)
	shape.Grid = 1
	err := l.f.Launch(cu, shape, p.Bytes())
	err = errors.Join(err, b.agreed.Record(cu), b.cu.Wait(b.agreed))
	for i := 1; i <= turns+ahead && err == nil; i++ {
		if i <= turns {
			at := (i - 1) % windowBuffers
			if i > windowBuffers {
				err = b.cu.Wait(b.done[at])
			}
			err = errors.Join(err, l.send(b.cu, i), b.sent[at].Record(b.cu))
		}
		if j := i - ahead; j >= 1 && err == nil {
			at := (j - 1) % windowBuffers
			p.Turn = uint32(j)
			err = errors.Join(cu.Wait(b.sent[at]), l.f.Launch(cu, l.shape, p.Bytes()), b.done[at].Record(cu))
		}
	}
	return err
}

// send queues the copies of one window: to the next rank first, so that no two ranks begin with the same one.
func (l *launching) send(cu *cuda.Stream, turn int) error {
	p := &l.params.Params
	ranks, window := int(p.Ranks), int(p.Window)
	offset := (turn - 1) * window
	for d := 1; d < ranks; d++ {
		peer := (int(p.Rank) + d) % ranks
		from, end := l.slicing.begin(peer)+offset, l.slicing.begin(peer+1)
		if from >= end {
			continue
		}
		to := cuda.Addr(p.Area[d]) + cuda.Addr(kernels.StagingAt(ranks, turn, window, d))
		if err := cu.Copy(to, cuda.Addr(p.Src)+cuda.Addr(from), min(window, end-from)); err != nil {
			return err
		}
	}
	return nil
}
