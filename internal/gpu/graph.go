package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Graph is a sequence of operations on the device that the driver replays. A launch is one call of the driver.
type Graph struct {
	d      *Device
	last   team.Work // the last of the works that were captured
	replay engine.Replay
	ops    uint64    // of a launch; several collectives in one kernel count as one, see Device.count
	part   GraphPart // the client's part, or nil
	reads  []read    // operations whose counts each launch reads

	mu    sync.Mutex
	graph *cuda.Graph // nil once closed
}

// Capture makes a graph of works, all of them operations on the device. It runs none of them. Every rank calls it at the
// same place. It waits until the peers have imported the buffers, or have failed to. part belongs to the client whose
// operations are among works; it is nil if there are none.
func Capture(ctx context.Context, c *engine.Comm, works []team.Work, part GraphPart) (*Graph, error) {
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	d := DeviceOf(c)
	if d == nil {
		_, none := c.GPU()
		return nil, none
	}
	for i := range works {
		w := &works[i]
		if w.Kernel.Name == "" && w.Kind == team.KindBarrier {
			w.Kernel = team.Kernel{Name: kernels.Barrier, Blocks: 1, Algorithm: "descriptors"}
		}
		if w.Kernel.Name == "" && w.Other == nil {
			return nil, fmt.Errorf("call %d, %v, is on host memory, and others are on %v: %w", i, w.Kind,
				d.Domain.Context.Device(), fault.ErrArgument)
		}
	}
	if err := d.imported(ctx, works); err != nil {
		return nil, err
	}
	return d.capture(ctx, works, part)
}

// imported waits until the peers have imported the buffers of works and the staging memory that works need. A buffer that
// a peer fails to import is staged.
func (d *Device) imported(ctx context.Context, works []team.Work) error {
	start := time.Now()
	for i := range works {
		w := works[i]
		if !w.Kernel.DirectAccess {
			continue
		}
		err := d.UntilImported(ctx, start, func() (pending bool, err error) {
			if w.Kernel.Multicast {
				d.nextCall(i + 1)
			}
			if err := d.acquire(&w, false); err != nil {
				return false, err
			}
			pending = d.makeStaging(&w, false) || w.SrcBuf.NotImported || w.DstBuf.NotImported || d.multi.pending
			w.Release()
			w.SrcBuf, w.DstBuf = team.Buf{}, team.Buf{}
			return pending, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// UntilImported calls acquire, which finds registrations, until acquire reports that nothing is pending: then the peers have
// imported the memory. Memory that a peer has not imported importTimeout after start, or a shorter
// Options.Timeout after it, is captured as staged.
func (d *Device) UntilImported(ctx context.Context, start time.Time, acquire func() (pending bool, err error)) error {
	for {
		pending, err := acquire()
		switch {
		case err != nil || !pending:
			return err
		case ctx.Err() != nil:
			return reason.Ended(ctx)
		case time.Since(start) > min(time.Duration(d.c.Team().Timeout.Load()), importTimeout):
			return nil
		}
		d.c.Domain().IPC.Progress()
		time.Sleep(importPoll)
	}
}

const (
	importTimeout = 10 * time.Second       // how long peers have to import a buffer before it is captured as staged
	importPoll    = 100 * time.Microsecond // between two checks whether they have
)

// capture records the launches of works on a stream that it makes for this.
func (d *Device) capture(ctx context.Context, works []team.Work, part GraphPart) (_ *Graph, err error) {
	s, err := d.Domain.NewStream()
	if err != nil {
		return nil, err
	}
	defer s.End()
	d.multi.call = 0 // whatever can be bound is
	g := &Graph{d: d, part: part}
	if part != nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, part.GiveUp())
			}
		}()
		if err := part.Prepare(ctx); err != nil {
			return nil, err
		}
	}
	for i, n := 0, 0; i < len(works); i += n { // kernels are loaded before the capture begins
		w := &works[i]
		if n = d.captured(works[i:]); w.Other != nil || d.alone(w) {
			continue
		}
		name := w.Kernel.Name
		if n > 1 {
			name = kernels.Group
		}
		if _, err := d.kernel(name, w.Type); err != nil {
			return nil, err
		}
	}
	if err := s.Driver.BeginCapture(); err != nil {
		return nil, err
	}
	var bad error
	for i, n := 0, 0; i < len(works); i += n {
		g.last = works[i]
		if n = d.captured(works[i:]); n > 1 {
			if bad = g.group(s, works[i:i+n]); bad != nil {
				break
			}
			continue
		}
		if g.last.Other != nil {
			var os []engine.OpInfo
			if os, bad = part.Capture(s.Driver, &g.last); bad != nil {
				break
			}
			g.replay.Add(os...)
			continue
		}
		if g.last.Kernel.Counts { // the counts of a launch may differ from those of the capture
			g.last.Kernel.Blocks = team.CountsBlocks
		}
		if bad = d.prepare(&g.last, false); bad == nil {
			bad = d.start(s, s.Driver, false)
		}
		if bad == nil && g.last.Kernel.Counts {
			bad = g.reading(s.Driver, &works[i])
		}
		var o engine.OpInfo
		d.c.Describe(&o, &g.last, g.last.Kernel.Algorithm, 0)
		o.Call = g.last.Signature()
		g.replay.Add(o)
		g.ops++
		g.last.Release() // the graph holds the buffers
		d.next.copy = nil
		if bad != nil {
			break
		}
	}
	graph, err := s.Driver.EndCapture()
	if err = errors.Join(bad, err); err != nil {
		if graph != nil {
			err = errors.Join(err, graph.Close())
		}
		return nil, err
	}
	g.graph = graph
	d.mu.Lock()
	d.graphs[g] = true
	d.mu.Unlock()
	return g, nil
}

// captured returns how many of the first works become one kernel of a graph, at least one.
func (d *Device) captured(works []team.Work) int {
	n := 1
	for n < len(works) && works[n-1].Grouped {
		n++
	}
	return d.groupable(works[:n])
}

// group records works, which go together, as one kernel on s.
func (g *Graph) group(s *Stream, works []team.Work) error {
	d := g.d
	held := slices.Clone(works) // works themselves hold no buffers
	defer func() {
		for i := range held {
			held[i].Release()
		}
	}()
	for i := range held {
		if err := held[i].Hold(); err != nil {
			return err
		}
	}
	if err := d.prepareGroup(held); err != nil {
		return err
	}
	if err := d.start(s, s.Driver, false); err != nil {
		return err
	}
	for i := range held {
		var o engine.OpInfo
		d.c.Describe(&o, &held[i], grouped(&held[i]), 0)
		o.Call = held[i].Signature()
		g.replay.Add(o)
	}
	g.last = works[len(works)-1]
	g.ops++
	return nil
}

// Launch queues the graph on v's stream. Without a stream it runs the graph and waits for it.
func (g *Graph) Launch(ctx context.Context, v *engine.View) error {
	ctx = engine.Context(ctx)
	c, d := v.Comm, g.d
	defer c.Tracer.Begin(ctx, "launch").End()
	if err := c.Barred(&g.last, "launch"); err != nil {
		return err
	}
	on := v.Stream
	if on == nil {
		if err := c.Enter(); err != nil {
			return err
		}
		on = d.own.s
	} else {
		c.EnterQueue()
	}
	defer c.Leave()
	if err := launchable(c, on); err != nil {
		return err
	}
	s := StreamOf(on)
	if ctx.Err() != nil {
		return c.LocalError("launch", reason.Ended(ctx)) // no peer can have noticed the launch yet
	}
	if v.Stream == nil {
		if err := d.awaitStreams(ctx, g.last.Kind); err != nil {
			return err
		}
	}
	refusal, err := g.queue(s)
	if err != nil {
		return err
	}
	if v.Stream != nil {
		if refusal != nil {
			s.s.AddError(c, refusal)
		}
		return nil
	}
	err = d.wait(ctx, s, g.last.Kind)
	if own := d.take(); err == nil {
		err = own
	}
	if refusal != nil {
		err = refusal
	}
	if g.part != nil && err == nil {
		err = g.part.Collect()
	}
	return err
}

// queue queues the graph on s. Device.queue says what a refusal is.
func (g *Graph) queue(s *Stream) (refusal, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.d
	if g.graph == nil {
		return nil, d.c.LocalError("launch", fault.ErrClosed)
	}
	if g.part != nil {
		if err := g.part.Lock(); err != nil {
			return nil, d.c.LocalError("launch", err)
		}
		defer g.part.Unlock()
	}
	if refusal, err = g.readCounts(); err != nil {
		return nil, d.failed(g.last.Kind, err)
	}
	d.next.graph = g
	if err := d.enqueue(s, s.Captured()); err != nil {
		return nil, d.failed(g.last.Kind, err)
	}
	at := [2]uint64{d.ops}
	if g.part != nil {
		at[1] = g.part.Number(g.replay.Counts[1])
	}
	d.ops += g.replay.Counts[0]
	d.count(g.ops)
	d.c.NoteReplay(&g.replay, at)
	return refusal, nil
}

// read is an operation of a graph that has vectors of counts. They are the caller's and may change between launches.
type read struct {
	work  team.Work
	seq   uint64 // its number among the graph's collectives, from 1 on
	node  cuda.Node
	f     *cuda.Function
	shape cuda.Launch
	last  kernels.VectorParams // the node's parameters now
	good  uint64               // the signature of valid counts
}

// reading notes w, which was captured last, as an operation whose counts each launch reads.
func (g *Graph) reading(cu *cuda.Stream, w *team.Work) error {
	node, err := cu.Last()
	l := &g.d.next
	g.reads = append(g.reads, read{work: *w, seq: g.replay.Counts[0] + 1, node: node, f: l.f, shape: l.shape,
		last: l.params, good: l.params.Signature})
	return err
}

// readCounts gives the kernels the counts of the next launch. If counts are wrong, the kernel moves nothing and tells the
// peers' kernels of the refusal, which readCounts returns.
func (g *Graph) readCounts() (refusal, err error) {
	d := g.d
	p := &d.next.params // a variable of this function would be allocated on the heap
	for i := range g.reads {
		r := &g.reads[i]
		*p = r.last
		p.Signature = r.good
		if bad := d.counts(p, &r.work); bad != nil {
			p.Signature = team.RefusalSignature(1, reason.Code(bad))
			if refusal == nil {
				refusal = d.error(r.work.Kind, d.ops+r.seq, "", -1, bad)
			}
		}
		if *p == r.last {
			continue
		}
		if err := g.graph.SetKernel(r.node, r.f, r.shape, p.Bytes(d.c.Team().Size())); err != nil {
			return nil, err
		}
		r.last = *p
	}
	return refusal, nil
}

// on queues the graph on cu. The caller has locked the part, which keeps the order of its client's operations.
func (g *Graph) on(s *Stream, cu *cuda.Stream, captured bool) error {
	if captured || g.part == nil {
		return g.Replay(cu)
	}
	return g.part.Launch(g, s, cu)
}

// Replay queues the graph on cu.
func (g *Graph) Replay(cu *cuda.Stream) error { return g.graph.Launch(cu) }

// Close frees the graph. It waits for a launch that is under way.
func (g *Graph) Close() error {
	g.d.mu.Lock()
	delete(g.d.graphs, g)
	g.d.mu.Unlock()
	return g.release()
}

func (g *Graph) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.graph == nil {
		return nil
	}
	graph := g.graph
	g.graph = nil
	err := graph.Close()
	if g.part != nil {
		err = errors.Join(err, g.part.Close())
	}
	return err
}
