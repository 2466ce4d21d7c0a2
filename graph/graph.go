// Package graph records the collectives, and the messages of device memory, that a function calls and replays them.
// Recording validates once and holds the buffers, so that a launch does nothing but the work. Buffers that a graph
// holds cannot be freed, and are found by its launches whatever becomes of their registrations by the program.
package graph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/register"
)

// Graph is a recorded sequence of calls of one communicator. It is the caller's, who closes it. Its methods may be
// called from any goroutine; launches of one communicator run one after the other, as its operations do.
type Graph struct {
	view   engine.View
	works  []engine.Work
	device *engine.DeviceGraph // nil for calls on host memory

	mu       sync.Mutex
	refs     map[*mem.Allocation]*register.Ref
	captured bool // Record is over
	launches int  // that hold the buffers, beside the graph itself
	closed   bool
}

// Capture calls record with a view of c whose collectives, and messages of device memory, are recorded and not run, and
// returns them as a graph. Collective and blocking: all ranks capture together, and if they do not record the same
// collectives, or one of them fails, all return an error that names the first one that differs, and nothing is kept.
// Messages may differ, as they do between ranks; each launch sends and receives them. Those of 32 MiB and more go by
// copy engine if the same graph has both sides of all messages between two ranks. Then they must meet each other: if
// one meets a message from outside of the graph, that is ErrMismatch for the sender, which breaks the communicator, and
// the memory that the graph receives to holds anything. Only memory of Alloc and Adopt can be
// captured (a Go slice is ErrArgument): what it holds at each launch counts. Count vectors are read at each launch too.
// Calls on device memory become a CUDA graph, when the peers have imported the buffers; host and device memory in one
// graph is ErrArgument. Not inside a group or another capture. Source: cudaStreamBeginCapture; NCCL's graph
// registration.
func Capture(ctx context.Context, c *ubcoll.Comm, record func(*ubcoll.Comm) error) (*Graph, error) {
	v := c.Engine()
	g := &Graph{view: *v, refs: map[*mem.Allocation]*register.Ref{}}
	fail := func(err error) (*Graph, error) {
		return nil, errors.Join(&ubcoll.Error{Op: "capture", Rank: c.Rank(), Peer: -1, Host: c.Hostname(c.Rank()), Err: err},
			g.Close())
	}
	if v.Recorder != nil {
		return fail(fmt.Errorf("inside a group or another capture: %w", fault.ErrArgument))
	}
	own := record(c.Recording(g))
	g.mu.Lock()
	g.captured = true
	g.mu.Unlock()
	device, messages, err := g.compare(ctx, c.On(nil), own)
	if err != nil {
		return fail(err)
	}
	if device {
		if err := g.capture(ctx, c.On(nil), messages); err != nil {
			return fail(err)
		}
	}
	return g, nil
}

// onDevice reports whether a call is one of a device.
func (g *Graph) onDevice() bool {
	for i := range g.works {
		if g.works[i].Kernel.Name != "" || g.works[i].Kind == engine.KindMessages {
			return true
		}
	}
	return false
}

// messages is how many sends and receives there are.
func (g *Graph) messages() (n int) {
	for i := range g.works {
		n += len(g.works[i].Messages)
	}
	return n
}

// capture makes the device's graph. messages is the most that a rank has.
func (g *Graph) capture(ctx context.Context, c *ubcoll.Comm, messages int) error {
	var mine []uint64
	var own error
	received := make([][]uint64, c.Size())
	if messages > 0 { // the senders learn where the receives are
		mine, own = g.view.Comm.Received(ctx, g.works)
		n := messages*engine.ReceivedWords + 1
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
		g.device, own = g.view.Comm.CaptureDevice(ctx, g.works, received)
	}
	return g.together(ctx, c, own)
}

// together returns an error on all ranks if one has one.
func (g *Graph) together(ctx context.Context, c *ubcoll.Comm, own error) error {
	all := make([]int8, c.Size())
	var mine int8
	if own != nil {
		mine = 1
	}
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of([]int8{mine})); err != nil || own != nil {
		return errors.Join(own, err)
	}
	for r, failed := range all {
		if failed != 0 {
			return fmt.Errorf("rank %d could not capture: %w", r, fault.ErrMismatch)
		}
	}
	return nil
}

// Record implements engine.Recorder.
func (g *Graph) Record(c *engine.Comm, w engine.Work) error {
	if w.Err != nil {
		return c.Local(w.Kind.String(), w.Err)
	}
	if w.Kind == engine.KindWindow {
		return c.Local(w.Kind.String(), fmt.Errorf("not in a capture, whose launches would each make one: %w",
			fault.ErrArgument))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.captured {
		return c.Local(w.Kind.String(), fmt.Errorf("on a capture that has ended: %w", fault.ErrClosed))
	}
	vecs := []*engine.Vec{&w.Src, &w.Dst}
	w.Messages = slices.Clone(w.Messages)
	for i := range w.Messages {
		vecs = append(vecs, &w.Messages[i].Vec)
	}
	for _, v := range vecs {
		if err := g.retain(c, v); err != nil {
			return c.Local(w.Kind.String(), err)
		}
	}
	w.Graph = true
	g.works = append(g.works, w)
	return nil
}

// retain holds v's memory for the graph, once whatever the number of calls that use it.
func (g *Graph) retain(c *engine.Comm, v *engine.Vec) error {
	if v.Bytes() == 0 {
		return nil
	}
	a := c.Allocation(*v)
	if a == nil {
		return fmt.Errorf("[%p,+%d) is Go memory or foreign: only memory of Alloc or Adopt can be captured: %w", v.Ptr,
			v.Bytes(), fault.ErrArgument)
	}
	v.Alloc = a // so that a launch notices if it is gone
	if g.refs[a] != nil {
		return nil
	}
	ref, err := c.Domain().Cache.RetainGraph(engine.Memory(a), a.Base(), a.Bytes)
	if err == nil {
		g.refs[a] = ref
	}
	return err
}

// compare makes sure that all ranks have recorded the same collectives. own is why this rank has not. It returns
// whether a rank has recorded a call of a device, and how many messages the one with most of them has.
func (g *Graph) compare(ctx context.Context, c *ubcoll.Comm, own error) (device bool, messages int, err error) {
	var mine []uint64
	for i := range g.works {
		if g.works[i].Kind != engine.KindMessages {
			mine = append(mine, g.works[i].Signature())
		}
	}
	const said = 3 // by each rank: collectives, or -1; messages; whether there is a device
	tell := [said]int64{int64(len(mine)), int64(g.messages())}
	if g.onDevice() {
		tell[2] = 1
	}
	if own != nil {
		tell[0] = -1
	}
	all := make([]int64, said*c.Size())
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(tell[:])); err != nil {
		return false, 0, errors.Join(own, err)
	}
	longest := 0
	for r := range c.Size() {
		if own == nil && all[said*r] < 0 {
			return false, 0, fmt.Errorf("rank %d could not capture: %w", r, fault.ErrMismatch)
		}
		longest, messages = max(longest, int(all[said*r])), max(messages, int(all[said*r+1]))
		device = device || all[said*r+2] != 0
	}
	if own != nil {
		return false, 0, own
	}
	mine = append(mine, make([]uint64, longest-len(mine))...)
	theirs := make([]uint64, longest*c.Size())
	if err := coll.AllGather(ctx, c, ubcoll.Of(theirs), ubcoll.Of(mine)); err != nil {
		return false, 0, err
	}
	for i := range longest {
		for r := range c.Size() {
			if a, b := theirs[i], theirs[r*longest+i]; a != b {
				return false, 0, fmt.Errorf("call %d is %s on rank 0 and %s on rank %d: %w", i, describe(a), describe(b), r,
					fault.ErrMismatch)
			}
		}
	}
	return device, messages, nil
}

func describe(signature uint64) string {
	if signature == 0 { // this rank recorded fewer calls
		return "missing"
	}
	return engine.Describe(signature)
}

// Len is the number of calls that were recorded.
func (g *Graph) Len() int { return len(g.works) }

// Launch runs the recorded calls in order, as one: nothing else of the communicator comes between. Collective. Blocking
// if the graph was captured on a plain communicator; on a view made by On, it is queued on the stream. It costs no
// look-up that a call does not, and validates nothing again; on a device it is one call of the driver. Not allowed in
// capture.
func (g *Graph) Launch(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return g.view.Local("launch", fault.ErrClosed)
	}
	g.launches++
	g.mu.Unlock()
	if g.device != nil {
		defer g.over() // the streams are waited for before memory goes
		return g.device.Launch(ctx, &g.view)
	}
	return g.view.SubmitAll(ctx, g.works, g.over)
}

// over ends a launch.
func (g *Graph) over() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.launches--
	g.letGo()
}

// letGo gives the buffers back when the graph is closed and the last launch is over.
func (g *Graph) letGo() error {
	if !g.closed || g.launches > 0 {
		return nil
	}
	var errs []error
	if g.device != nil {
		errs = append(errs, g.device.Close())
	}
	for _, r := range g.refs {
		errs = append(errs, r.Close())
	}
	g.refs = nil
	return errors.Join(errs...)
}

// Close ends the graph, and lets go of its buffers when the launches that are under way or queued are over. Local: it
// returns at once.
// ErrClosed the second time.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return g.view.Local("graph", fault.ErrClosed)
	}
	g.closed = true
	return g.letGo()
}
