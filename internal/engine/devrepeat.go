package engine

import (
	"bytes"
	"errors"
	"math"
	"math/bits"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/cuda/kernels"
)

// Launching a graph of one kernel takes the driver about half as long as launching the kernel, which is most of what a
// small operation on a stream costs. So those that a program makes again and again with the same buffers become graphs.
// Their parameters are the same to the byte, addresses and all, so that the device does what it would do otherwise.

// repeats are the launches that were seen lately. It is for who has the communicator's turn.
type repeats struct {
	sets   [repeatSets][repeatWays]repeat
	stream *cuda.Stream // on which graphs are captured; made when first used
	err    error        // of closing graphs
}

// A launch is kept in one of a few places, which its parameters choose.
const (
	repeatSets = 16
	repeatWays = 4
)

// repeat is a launch, and what came of it.
type repeat struct {
	f      *cuda.Function // nil: none
	shape  cuda.Launch
	params kernels.Params

	seen   int
	worth  int         // how many others must come to its place, while it is not seen, to have it given up
	graph  *cuda.Graph // once it is worth it
	failed bool        // there is none, and will be none
}

const (
	repeatAfter = 3  // sights make a graph
	repeatWorth = 16 // more launches in turn than there are places must not have graphs made over and over
)

// repeated finds or makes the graph that does d.next, nil if there is none, or not yet. Only what would be launched
// early is small enough for it to matter.
func (d *device) repeated() *repeat {
	l := &d.next
	if l.copy != nil || !l.shape.Early {
		return nil
	}
	if d.repeats == nil {
		d.repeats = new(repeats)
	}
	t := d.repeats
	e := t.sight(l.f, l.shape, &l.params.Params)
	if e == nil || e.seen < repeatAfter || e.failed {
		return nil
	}
	if e.graph == nil {
		var err error
		if e.graph, err = t.build(d.gpu.ctx, e); err != nil {
			e.failed = true // out of memory, say: launches go on without
			return nil
		}
	}
	return e
}

// sight counts a launch and returns where it is kept, nil if it is not: what stands in its place was in use lately.
func (t *repeats) sight(f *cuda.Function, shape cuda.Launch, p *kernels.Params) *repeat {
	set := &t.sets[setOf(p)]
	least := &set[0]
	for i := range set {
		e := &set[i]
		if e.f == f && e.shape == shape && bytes.Equal(e.params.Bytes(), p.Bytes()) {
			e.seen, e.worth = min(e.seen+1, repeatAfter), repeatWorth
			return e
		}
		if e.worth < least.worth {
			least = e
		}
	}
	if least.worth > 0 {
		for i := range set {
			set[i].worth--
		}
		return nil
	}
	t.drop(least)
	*least = repeat{f: f, shape: shape, params: *p, seen: 1, worth: repeatWorth}
	return least
}

// setOf is the set of launches with such parameters.
func setOf(p *kernels.Params) uint64 {
	h := uint64(0)
	for _, v := range [...]uint64{p.Src, p.Dst, p.Signature, math.Float64bits(p.Factor)} {
		h = bits.RotateLeft64(h^v, 29) * 0x9e3779b97f4a7c15
	}
	return h >> 32 % repeatSets
}

// build captures e's launch as a graph.
func (t *repeats) build(ctx *cuda.Context, e *repeat) (_ *cuda.Graph, err error) {
	if t.stream == nil {
		if t.stream, err = ctx.NewStream(); err != nil {
			return nil, err
		}
	}
	if err := t.stream.BeginCapture(); err != nil {
		return nil, err
	}
	shape := e.shape
	shape.Early = false // there is nothing before it
	bad := e.f.Launch(t.stream, shape, e.params.Bytes())
	g, err := t.stream.EndCapture()
	if bad != nil && g != nil {
		err = g.Close()
	}
	if err = errors.Join(bad, err); err != nil {
		return nil, err
	}
	return g, nil
}

// launch queues the graph on cu, or the kernel if that cannot be.
func (e *repeat) launch(t *repeats, cu *cuda.Stream) error {
	if e.graph.Launch(cu) == nil {
		return nil
	}
	t.drop(e)
	e.failed = true
	return e.f.Launch(cu, e.shape, e.params.Bytes())
}

// drop closes e's graph. The driver lets it run to its end.
func (t *repeats) drop(e *repeat) {
	if e.graph != nil {
		t.err = errors.Join(t.err, e.graph.Close())
		e.graph = nil
	}
}

// close closes all graphs, of which none runs any more. It may be nil.
func (t *repeats) close() error {
	if t == nil {
		return nil
	}
	for i := range t.sets {
		for k := range t.sets[i] {
			t.drop(&t.sets[i][k])
		}
	}
	err := t.err
	if t.stream != nil {
		err = errors.Join(err, t.stream.Close())
	}
	return err
}
