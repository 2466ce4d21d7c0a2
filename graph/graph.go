// Package graph records the collectives, and the messages of device memory, that a function calls, and replays them.
// Recording validates the calls once and holds the buffers, so that a launch only does the work. Buffers that a graph
// holds cannot be freed. Its launches find them even after the program has closed its registrations.
package graph

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpumail"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Graph is a recorded sequence of calls of one communicator. It is the caller's, who closes it. Its methods may be
// called from any goroutine. Launches of one communicator run one after the other, as its operations do.
type Graph struct {
	view   inside.View
	works  []team.Work
	device *gpu.Graph    // nil for calls on host memory
	after  func()        // the method value over, made once so that launches do not allocate
	kept   engine.Keeper // the buffers

	mu       sync.Mutex
	launches int // launches under way, which hold the buffers as the graph itself does
	closed   bool
}

// Capture calls record with a view of c, records its collectives and messages of device memory without running them,
// and returns them as a graph. Collective and blocking: all ranks capture together. If they do not record the same
// collectives, or one of them fails, all return an error that names the first difference, and nothing is kept. record
// may use [ubcoll.Group], whose small all-reduces on a device become one kernel, as outside of a capture; the ranks
// must then make the same groups (ErrMismatch). Not inside a group or another capture. Source: cudaStreamBeginCapture;
// NCCL's graph registration.
//
// Messages may differ between ranks; each launch sends and receives them. Copy engines carry messages of 32 MiB and
// more if the same graph has both sides of all messages between two ranks. Such messages must then match each other: if
// one matches a message from outside the graph, the sender gets ErrMismatch, the communicator breaks, and the content
// of the graph's receive buffer is undefined.
//
// Only memory of [ubcoll.Alloc] and [ubcoll.Adopt] can be captured (a Go slice is ErrArgument); a launch uses its
// content at that time. Each launch also reads and checks the count vectors. Their sums may be smaller than at the
// call, and bytes beyond them are not touched. Negative counts, and counts that exceed a buffer, are ErrArgument on all
// ranks: that operation moves nothing, and the graph stays usable; on a device the later operations of that launch
// still run.
//
// Calls on device memory become a CUDA graph, once the peers have imported the buffers. ErrArgument: host and device
// memory in one graph, and a graph without operations. A collective on c itself while record runs is also ErrArgument,
// and the capture then fails on all ranks.
func Capture(ctx context.Context, c *ubcoll.Comm, record func(*ubcoll.Comm) error) (*Graph, error) {
	v := (*inside.Comm)(c).View()
	if v.Recorder != nil {
		return nil, v.LocalError(opCapture, fmt.Errorf("inside a group or another capture: %w", fault.ErrArgument))
	}
	g := &Graph{view: *v}
	g.after = g.over
	_, own, err := new(inside.Recording).Do(v, new(engine.Recorded), "graph.Capture", recorder{g}, func(c *inside.Comm) error {
		if record == nil {
			return inside.ErrNoCalls
		}
		return record((*ubcoll.Comm)(c))
	})
	if err != nil {
		return nil, err
	}
	device, messages, err := g.compare(ctx, c.On(nil), own)
	if err == nil && device {
		err = g.capture(ctx, c.On(nil), messages)
	}
	if err == nil {
		return g, nil
	}
	var e *ubcoll.Error
	if !errors.As(err, &e) || e.Op != opCapture {
		err = v.LocalError(opCapture, err)
	}
	return nil, errors.Join(err, g.Close())
}

const opCapture = "capture"

// Errors of graphs.
var (
	errNoGraph = engine.NilError("graph", "Capture makes one")
	errClosed  = fmt.Errorf("the graph has been closed, by its Close; Capture makes another: %w", fault.ErrClosed)
)

func (g *Graph) nothing() bool { return g == nil || g.view.Comm == nil }

// onDevice reports whether the graph is one of the device.
func (g *Graph) onDevice() bool {
	if g.view.Comm.SpansHosts() { // a launch queues the calls anew
		return false
	}
	for i := range g.works {
		if g.works[i].Kernel.Name != "" || g.works[i].Kind == team.KindMessages {
			return true
		}
	}
	return false
}

// messages is the number of sends and receives.
func (g *Graph) messages() (n int) {
	for i := range g.works {
		if o := g.works[i].Other; o != nil {
			n += o.Len()
		}
	}
	return n
}

// capture makes the device's graph. messages is the largest number of messages on any rank.
func (g *Graph) capture(ctx context.Context, c *ubcoll.Comm, messages int) error {
	var mine []uint64
	var own error
	received := make([][]uint64, c.Size())
	if messages > 0 { // tells the senders where the receives are
		mine, own = g.view.GPUMail.Received(ctx, g.works)
		n := messages*gpumail.ReceivedWords + 1
		all := make([]uint64, n*c.Size())
		mine = append([]uint64{uint64(len(mine))}, mine...)
		mine = append(mine, make([]uint64, n-len(mine))...)
		if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(mine)); err != nil {
			return errors.Join(own, err)
		}
		for r := range received {
			received[r] = all[r*n+1:][:all[r*n]]
		}
	}
	if own == nil {
		g.device, own = g.view.GPUMail.Capture(ctx, g.works, received)
	}
	return g.shareError(ctx, own)
}

// shareError returns an error on all ranks if any rank has one.
func (g *Graph) shareError(ctx context.Context, own error) error {
	_, err := g.view.Comm.Exchange(ctx, team.KindCapture, nil, own)
	return err
}

// recorder is a graph that records calls.
type recorder struct{ *Graph }

// Begin implements engine.Recorder.
func (r recorder) Begin() *team.Work { return new(team.Work) }

// Record implements engine.Recorder.
func (r recorder) Record(c *engine.Comm, w *team.Work) error {
	if w.Err != nil {
		return c.LocalError(w.Kind.String(), w.Err)
	}
	if w.Other != nil && w.Other.OnHost() {
		return c.LocalError(w.Kind.String(), fmt.Errorf("messages of host memory in a capture: %w", fault.ErrArgument))
	}
	if w.Other != nil {
		if w.Other.Len() == 0 {
			return nil
		}
		if err := w.Other.SelfBlocked(); err != nil {
			return err
		}
	}
	if w.Kind == team.KindWindow {
		return c.LocalError(w.Kind.String(), fmt.Errorf("not in a capture, whose launches would each make one: %w",
			fault.ErrArgument))
	}
	vecs := []*team.Vec{&w.Src, &w.Dst}
	if w.Other != nil {
		w.Other = w.Other.Clone()
		for i := range w.Other.Len() {
			vecs = append(vecs, w.Other.Vec(i))
		}
	}
	for _, v := range vecs {
		if err := r.retain(c, v); err != nil {
			return c.LocalError(w.Kind.String(), err)
		}
	}
	w.Graph = true
	r.works = append(r.works, *w)
	return nil
}

// retain holds v's memory for the graph, only once for any number of calls.
func (g *Graph) retain(c *engine.Comm, v *team.Vec) error {
	if v.Bytes() == 0 {
		return nil
	}
	a := c.Allocation(*v)
	if a == nil {
		return fmt.Errorf("[%p,+%d) is Go memory, foreign, or of another Open: only memory of Alloc or Adopt of this Comm "+
			"can be captured: %w", v.Ptr, v.Bytes(), fault.ErrArgument)
	}
	v.Alloc = a // lets a launch notice that the memory is gone
	return g.kept.Keep(c, a)
}

// compare makes sure that all ranks have recorded the same collectives. own is this rank's error in recording, if any.
// It returns whether any rank has recorded a device call, and the largest number of messages on any rank.
func (g *Graph) compare(ctx context.Context, c *ubcoll.Comm, own error) (device bool, messages int, err error) {
	var mine []uint64
	for i := range g.works {
		if g.works[i].Kind != team.KindMessages {
			mine = append(mine, g.works[i].Signature())
		}
	}
	tell := summary{Collectives: int64(len(mine)), Messages: int64(g.messages()), Groups: g.groups(), Device: g.onDevice()}
	record, err := binary.Append(nil, binary.LittleEndian, tell)
	all, err := g.view.Comm.Exchange(ctx, team.KindCapture, record, errors.Join(own, err))
	if err != nil {
		return false, 0, err
	}
	var first summary
	longest, differs := 0, -1
	for r := range all {
		var t summary
		if _, err := binary.Decode(all[r], binary.LittleEndian, &t); err != nil {
			return false, 0, fmt.Errorf("record of rank %d: %w: %w", r, err, fault.ErrMismatch)
		}
		longest, messages = max(longest, int(t.Collectives)), max(messages, int(t.Messages))
		device = device || t.Device
		if r == 0 {
			first = t
		} else if differs < 0 && t.Groups != first.Groups {
			differs = r
		}
	}
	if longest+messages == 0 {
		return false, 0, fmt.Errorf("nothing was recorded: call the operations on the *Comm that Capture passes to its "+
			"function: %w", fault.ErrArgument)
	}
	mine = append(mine, make([]uint64, longest-len(mine))...)
	if err := g.same(ctx, c, mine); err != nil {
		return false, 0, err
	}
	if device && differs > 0 {
		return false, 0, fmt.Errorf("rank %d calls the same collectives as rank 0, but others of them in one Group: %w",
			differs, fault.ErrMismatch)
	}
	return device, messages, nil
}

// groups is a hash of which collectives continue a group, because a device may run those of a group as one kernel.
func (g *Graph) groups() (hash uint64) {
	n := uint64(0)
	for i := range g.works {
		w := &g.works[i]
		if w.Kind == team.KindMessages {
			continue
		}
		if n++; w.Grouped {
			hash = (hash ^ n) * 0x9e3779b97f4a7c15
		}
	}
	return hash
}

// same returns an error, alike on all ranks, if the ranks have recorded different calls. mine are this rank's
// signatures, equally many on all ranks. Each rank compares its own with rank 0's, and tells where they first differ.
func (g *Graph) same(ctx context.Context, c *ubcoll.Comm, mine []uint64) error {
	of0 := slices.Clone(mine)
	if err := coll.Broadcast(ctx, c, ubcoll.Of(of0), 0); err != nil {
		return err
	}
	var d difference
	for d.Call < int64(len(mine)) && mine[d.Call] == of0[d.Call] {
		d.Call++
	}
	if d.Call < int64(len(mine)) {
		d.Of0, d.OfThisRank = of0[d.Call], mine[d.Call]
	}
	record, err := binary.Append(nil, binary.LittleEndian, d)
	all, err := g.view.Comm.Exchange(ctx, team.KindCapture, record, err)
	if err != nil {
		return err
	}
	first, rank := difference{Call: int64(len(mine))}, -1
	for r := range all {
		if _, err := binary.Decode(all[r], binary.LittleEndian, &d); err != nil {
			return fmt.Errorf("record of rank %d: %w: %w", r, err, fault.ErrMismatch)
		}
		if d.Call < first.Call {
			first, rank = d, r
		}
	}
	if rank < 0 {
		return nil
	}
	return fmt.Errorf("call %d is %s on rank 0 and %s on rank %d: %w", first.Call, describe(first.Of0),
		describe(first.OfThisRank), rank, fault.ErrMismatch)
}

// difference is a rank's first call that differs from rank 0's, with both signatures. If there is none, Call is the
// number of calls.
type difference struct {
	Call            int64
	Of0, OfThisRank uint64
}

// summary is what ranks tell each other about what they have recorded.
type summary struct {
	Collectives, Messages int64
	Groups                uint64 // Graph.groups
	Device                bool
}

func describe(signature uint64) string {
	if signature == 0 { // this rank recorded fewer calls
		return "missing"
	}
	return team.Describe(signature)
}

// Len is the number of recorded calls.
func (g *Graph) Len() int {
	if g == nil {
		return 0
	}
	return len(g.works)
}

// Launch runs the recorded calls in order, as one: no other operation of the communicator runs between them.
// Collective. Blocking if the graph was captured on a plain communicator; queued on the stream if it was captured on a
// view made by [ubcoll.Comm.On]. It looks up no more than a call does, and validates only count vectors again. On a
// device it is one driver call, and one more for each operation whose counts have changed. It returns the errors of the
// calls, and ErrClosed after Close. Not allowed in capture.
func (g *Graph) Launch(ctx context.Context) error {
	if g.nothing() {
		return errNoGraph
	}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return g.view.LocalError("launch", errClosed)
	}
	g.launches++
	g.mu.Unlock()
	if g.device != nil {
		defer g.over() // Close waits for the streams before it releases memory
		return g.device.Launch(ctx, &g.view.View)
	}
	return g.view.SubmitAll(ctx, "launch", g.works, g.after)
}

// over ends a launch.
func (g *Graph) over() {
	g.mu.Lock()
	g.launches--
	last := g.closed && g.launches == 0
	g.mu.Unlock()
	if last { // Close has returned
		g.view.Within("close", func() error {
			g.view.Domain().Failed(g.releaseBuffers())
			return nil
		})
	}
}

// releaseBuffers releases the buffers, once the graph is closed and the last launch is over.
func (g *Graph) releaseBuffers() error {
	var errs []error
	if g.device != nil {
		errs = append(errs, g.device.Close())
	}
	if err := errors.Join(append(errs, g.kept.Close())...); err != nil {
		return g.view.LocalError("close", err)
	}
	return nil
}

// Close ends the graph, and releases its buffers when the launches under way or queued are over. Local. It returns at
// once, except for a graph of device memory: then it waits for the operations queued on this rank's device, and for
// peers that have the buffers mapped, for at most five seconds (ErrTimeout: the graph is closed, and its buffers follow
// by themselves). ErrClosed the second time, and after the rank's last communicator, whose end has ended the buffers.
func (g *Graph) Close() error {
	if g.nothing() {
		return errNoGraph
	}
	g.mu.Lock()
	was, launched := g.closed, g.launches > 0
	g.closed = true
	g.mu.Unlock()
	switch {
	case was:
		return g.view.LocalError("graph", errClosed)
	case launched: // the last launch releases the buffers
		return nil
	case g.device == nil:
		return g.releaseBuffers()
	}
	return g.view.Within("close", g.releaseBuffers)
}
