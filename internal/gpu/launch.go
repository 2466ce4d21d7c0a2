package gpu

import (
	"context"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// LaunchAll queues works on s, a stream of a device, in order. What is wrong with a rank's arguments is an error of the
// stream, as on the host, and of the other ranks'.
func (s *Stream) LaunchAll(ctx context.Context, c *engine.Comm, works []team.Work, group bool) error {
	c.EnterQueue()
	defer c.Leave()
	c.NoteTogether(group)
	defer c.NoteTogether(false)
	if err := launchable(c, s.s); err != nil {
		return err
	}
	d := DeviceOf(c)
	var first error // refusal, after which all is refused: the other ranks have queued the whole group
	for n := 0; len(works) > 0; works = works[n:] {
		n = 1
		if o := works[0].Other; o != nil { // refused or not: the other ranks have queued theirs
			if err := o.Run(ctx); err != nil {
				return err
			}
			continue
		}
		if group {
			n = d.together(works)
		}
		var refusal, err error
		if n > 1 {
			refusal, err = d.queueGroup(ctx, s, works[:n], first)
		} else {
			if c.Team().Work = works[0]; first != nil {
				c.Team().Work.Err = first
			}
			refusal, err = d.queueWork(ctx, s)
		}
		if err != nil {
			return err
		}
		if refusal != nil && first == nil {
			first = refusal
			s.s.AddError(c, refusal)
		}
	}
	return nil
}

// Launch is LaunchAll for c's Team().Work alone. It is the caller's turn, which ends.
func (s *Stream) Launch(ctx context.Context, c *engine.Comm) error {
	defer c.Leave()
	if err := launchable(c, s.s); err != nil {
		c.Team().Work = team.Work{}
		return err
	}
	refusal, err := DeviceOf(c).queueWork(ctx, s)
	if refusal != nil {
		s.s.AddError(c, refusal)
	}
	return err
}

// queueWork queues the communicator's work on s; see Device.queue.
func (d *Device) queueWork(ctx context.Context, s *Stream) (refusal, err error) {
	c := d.c
	refusal, err = d.queue(ctx, s, &c.Team().Work)
	c.Team().Work.Release()
	c.Team().Work = team.Work{} // the user's memory is not kept alive
	return refusal, err
}

// launchable is why nothing of c can be queued on s, which may be one of the host.
func launchable(c *engine.Comm, s *engine.Stream) error {
	switch {
	case c.Broken() != nil:
		return c.Broken()
	case c.Closing():
		return c.LocalError("stream", engine.ErrCommClosed)
	}
	if err := c.CheckDevice(s.Device()); err != nil {
		return c.LocalError("stream", err)
	}
	// What is queued now waits for all peers, and the driver would not notice that one is gone.
	w := team.WaitState{Op: "stream", Step: "launch"}
	for r := range c.Team().Peers {
		if r == c.Team().Rank() {
			continue
		}
		if v := c.Team().Peers[r].Lost(); v != 0 {
			return c.Fail(c.Team().LostError(&w, r, v))
		}
		if c.Team().Peers[r].Closed() {
			return c.Fail(c.Team().ClosedError(&w, r))
		}
	}
	return nil
}

// Perform implements Accelerator: it does w on the communicator's own stream.
func (d *Device) Perform(ctx context.Context, w *team.Work) error {
	c := d.c
	if err := launchable(c, d.own.s); err != nil {
		return err
	}
	if err := d.settle(ctx, w.Kind); err != nil {
		return err
	}
	var began time.Time
	if w.Kernel.Words && c.Measures(w) { // else it travels in packets, or might
		began = time.Now()
	}
	refusal, err := d.queue(ctx, d.own, w)
	if err != nil {
		return err
	}
	err = d.outcome(ctx, w.Kind, refusal)
	if !began.IsZero() && err == nil {
		c.NoteTook(w.Kind, d.ops, time.Since(began), 0)
	}
	return err
}

// outcome waits for what a blocking call has queued, and is the call's error.
func (d *Device) outcome(ctx context.Context, k team.OpKind, refusal error) error {
	if refusal != nil {
		ctx = context.WithoutCancel(ctx) // the peers must still be heard out, for Options.Timeout at most
	}
	err := d.wait(ctx, d.own, k)
	if told := d.take(); err == nil {
		err = told
	}
	if refusal != nil {
		return refusal
	}
	return err
}

// settle waits for what was queued on other streams before a blocking call, so that what the status says after it is
// the call's.
func (d *Device) settle(ctx context.Context, k team.OpKind) error {
	s := d.last.Load()
	if s == nil || s == d.own {
		return nil
	}
	if err := d.wait(ctx, s, k); err != nil {
		return err
	}
	if err := d.take(); err != nil {
		d.mu.Lock()
		d.pending = append(d.pending, err)
		d.mu.Unlock()
	}
	return nil
}

// queue queues w on s; it is the communicator's turn. A refusal is what is wrong with w on this rank: it has been
// queued as such, for the peers to see. An error means that nothing was queued.
func (d *Device) queue(ctx context.Context, s *Stream, w *team.Work) (refusal, err error) {
	bad := w.Err
	if bad == nil && w.Kernel.Name == "" {
		bad = fmt.Errorf("memory of the host on a stream of %v: %w", s.s.Device(), fault.ErrArgument)
	}
	if bad == nil && ctx.Err() != nil {
		bad = reason.Ended(ctx)
	}
	captured := s.captured()
	if bad == nil && captured {
		bad = d.retain(w)
	}
	if bad == nil {
		bad = d.prepare(w, !captured)
	}
	algorithm := w.Kernel.Algorithm
	if bad != nil {
		algorithm = engine.Refused.Name
		if err := d.refuse(bad, 1, w.Ends || s == d.own); err != nil { // a blocking group ends with it
			return nil, d.failed(w.Kind, err)
		}
	}
	if err := d.enqueue(s, captured); err != nil {
		return nil, d.failed(w.Kind, err)
	}
	d.ops++
	d.count(1)
	d.c.NoteAs(w, algorithm, d.ops)
	if bad != nil {
		refusal = d.error(w.Kind, d.ops, "", -1, bad)
	}
	return refusal, nil
}

// launching is what is to be queued next: a kernel, or one of the others. It is part of the device, so that a call
// allocates nothing for it.
type launching struct {
	f      *cuda.Function
	shape  cuda.Launch
	room   int32 // that the kernel takes, see Stream.Follows
	params kernels.VectorParams
	group  kernels.GroupParams
	args   []byte // of one of these, what the kernel takes

	send, recv [kernels.MaxRanks]uint64

	copy  *team.Work
	graph *Graph
}

// start queues d.next on cu, s's, which somebody else captures or not.
func (d *Device) start(s *Stream, cu *cuda.Stream, captured bool) error {
	l := &d.next
	switch {
	case l.copy != nil:
		return copyAlone(cu, l.copy)
	case l.graph != nil:
		s.Follows(0, 0) // a graph ends before what is behind it begins
		return l.graph.on(s, cu, captured)
	}
	if !s.Follows(l.room, d.Blocks) {
		l.shape.Early = false
	}
	return l.f.Launch(cu, l.shape, l.args)
}

// prepare makes d.next what does w. It holds the buffers and their registrations, which w.Release gives back once that
// is queued: whatever ends their memory waits for the streams first. stage: staging memory may be made, and peers waited
// for who have yet to map what is large.
func (d *Device) prepare(w *team.Work, stage bool) error {
	if err := w.Hold(); err != nil {
		return err
	}
	if d.alone(w) {
		w.Kernel.Algorithm = "copy"
		d.next.copy = w
		return nil
	}
	if err := d.acquire(w, stage); err != nil {
		return err
	}
	if stage {
		d.makeStaging(w, true)
	}
	k, err := d.kernel(w.Kernel.Name, w.Type)
	if err != nil {
		return err
	}
	d.next.f, d.next.params.Params = k.f, d.Params
	d.fill(&d.next.params.Params, w)
	d.next.args = kernels.Bytes(&d.next.params.Params)
	if w.Kernel.Counts {
		if err := d.counts(&d.next.params, w); err != nil {
			return err
		}
		d.next.args = d.next.params.Bytes(d.c.Team().Size())
	}
	blocks := w.Kernel.Blocks
	if w.Kernel.Lines > 0 {
		blocks = min(blocks, d.Blocks, d.Layout.LineBlocks(d.Threads))
		d.next.params.SetLines(w.Kernel.Lines, blocks, d.Threads)
	}
	d.shape(k, blocks, d.early(w))
	return nil
}

// shape gives d.next, which is k, so many blocks, as far as there are.
func (d *Device) shape(k loaded, blocks int, early bool) {
	grid := min(max(blocks, 1), d.Blocks)
	d.next.shape = cuda.Launch{Grid: grid, Block: d.Threads, Early: early}
	d.next.room = int32(grid)
	if !k.pairs {
		d.next.room *= RoomBlocks
	}
}

// counts sets the parameters of w's counts.
func (d *Device) counts(p *kernels.VectorParams, w *team.Work) error {
	n := d.c.Team().Size()
	send, recv := d.next.send[:n], d.next.recv[:n]
	if err := w.Counts(d.c.Team().Rank(), send, recv); err != nil {
		return err
	}
	for r := range n {
		p.Counts[r].Send, p.Counts[r].Recv = send[r], recv[r]
	}
	return nil
}

// early reports whether w's kernel is launched early, if there is room for it, which hides what a launch costs. It
// matters where the work is small.
func (d *Device) early(w *team.Work) bool { return !w.Kernel.Words && d.Domain.Context.Early() }

// refuse makes d.next what tells the peers that this rank takes no part in so many operations, and why; last: whatever
// number of them the peers have put into their kernel, since nothing of a group follows.
func (d *Device) refuse(why error, operations int, last bool) error {
	p := &d.next.params.Params
	*p = d.Params
	p.Count, d.next.args = uint64(operations), kernels.Bytes(p)
	if last {
		operations = team.AllOfThem
	}
	p.Signature = team.RefusalSignature(operations, reason.Code(why))
	d.next.shape, d.next.room = cuda.Launch{Grid: 1, Block: d.Threads}, RoomBlocks
	k, err := d.kernel(kernels.Barrier, dtype.Invalid)
	d.next.f = k.f
	return err
}

// alone reports whether w is a copy: every collective of a communicator of one rank is, but for those that change the
// data or have counts, which may not be the whole of it.
func (d *Device) alone(w *team.Work) bool {
	return d.c.Size() == 1 && !w.Changes() && !w.Kernel.Counts
}

func copyAlone(cu *cuda.Stream, w *team.Work) error {
	if w.Src.Bytes() == 0 || w.Dst.Bytes() == 0 || w.Dst.Ptr == w.Src.Ptr {
		return nil
	}
	return cu.Copy(cuda.Addr(uintptr(w.Dst.Ptr)), cuda.Addr(uintptr(w.Src.Ptr)), w.Src.Bytes())
}

// retain registers w's buffers for as long as the communicator lives: somebody else is capturing the stream, and may
// replay w at any time.
func (d *Device) retain(w *team.Work) error {
	w.Graph = true
	return d.Keep(&w.Src, &w.Dst)
}

// Keep registers the memory of vs for as long as the communicator lives: somebody may replay what uses it at any time.
func (d *Device) Keep(vs ...*team.Vec) error {
	for _, v := range vs {
		a := d.c.Allocation(*v)
		if v.Bytes() == 0 || a == nil {
			continue
		}
		if err := d.kept.Keep(d.c, a); err != nil {
			return err
		}
	}
	return nil
}

// kernel finds a kernel.
func (d *Device) kernel(name string, t dtype.Type) (loaded, error) {
	key := kernelKey{name, t}
	if k := d.functions[key]; k.f != nil {
		return k, nil
	}
	f, err := d.Domain.Kernels.Kernel(name, t, d.c.Team().Size())
	if err != nil {
		return loaded{}, fmt.Errorf("kernel %s: %w", name, err)
	}
	if f.MaxThreads < d.Threads {
		return loaded{}, fmt.Errorf("kernel %s runs with up to %d threads a block, not %d: %w", name, f.MaxThreads,
			d.Threads, fault.ErrLimit)
	}
	fit, err := f.Resident(cuda.Launch{Grid: 1, Block: d.Threads})
	if err != nil {
		return loaded{}, err
	}
	k := loaded{f, fit >= RoomBlocks}
	d.functions[key] = k
	return k, nil
}

// loaded is a kernel of the device.
type loaded struct {
	f     *cuda.Function
	pairs bool // RoomBlocks blocks find room on a multiprocessor
}

type kernelKey struct {
	name string
	t    dtype.Type
}

// fill sets the parameters of w.
func (d *Device) fill(p *kernels.Params, w *team.Work) {
	p.Src, p.Dst = uint64(uintptr(w.Src.Ptr)), uint64(uintptr(w.Dst.Ptr))
	p.SrcWord, p.DstWord = WordOf(&w.SrcBuf), WordOf(&w.DstBuf)
	if at, extent, offset, ok := d.staging.Ready(); ok {
		p.Stage, p.StageWord = at, kernels.Word(extent, offset)
	}
	p.Signature, p.Count = w.Signature(), uint64(w.Count)
	p.Factor, p.Op, p.Root, p.Size = w.Factor, uint32(w.Red), uint32(w.Root), uint32(w.Type.Size())
	if w.Kernel.Push {
		p.Push = 1
	}
}

// WordOf is a buffer for kernels: where peers find it, or 0 if it is staged.
func WordOf(b *team.Buf) uint64 {
	if b.Claim == nil {
		return 0
	}
	return kernels.Word(b.At.Arena, int(b.At.Offset))
}

// count publishes that n more collectives, or kernels of several, have been queued on the device. It is this
// communicator's turn.
func (d *Device) count(n uint64) {
	d.collectives += n
	d.c.Team().PublishQueued(d.collectives | d.uncounted)
}

// enqueue queues d.next on s, which somebody else captures or not, after what this communicator has queued on other
// streams.
func (d *Device) enqueue(s *Stream, captured bool) error {
	defer func() { d.next.copy, d.next.graph = nil, nil }()
	d.Watch()
	d.launches.Add(1)
	return s.Use(func(cu *cuda.Stream) error {
		last := d.last.Load()
		if last == s && !captured { // the usual case: s knows d, until it is closed
			return d.start(s, cu, false)
		}
		s.Enter(d, d.Domain)
		if captured { // when it runs, and after what, is for whoever captures it to say
			d.uncounted = team.Uncounted
			d.next.shape.Early = false // and it may look at the capture by calls that do not know of early launches
			return d.start(s, cu, true)
		}
		if last != nil {
			if err := last.Before(cu, d.event); err != nil {
				return err
			}
		}
		d.last.Store(s)
		return d.start(s, cu, false)
	})
}

// acquire finds the registrations of w's buffers, as far as its kernel has a use for them.
func (d *Device) acquire(w *team.Work, wait bool) error {
	if !w.Kernel.Words {
		w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with its flags", "its own rank alone writes it"
		return nil
	}
	return w.AcquireBuffers(func(v *team.Vec, b *team.Buf) error { return d.AcquireBuffer(w, v, b, wait) })
}

// AcquireBuffer finds the registration of v, one of w's buffers, unless a peer cannot reach it: then it is staged. It may
// wait for peers to map what is large, which takes less time than to stage it.
func (d *Device) AcquireBuffer(w *team.Work, v *team.Vec, b *team.Buf, wait bool) error {
	c := d.c
	b.Late = false
	if err := c.Acquire(v, b, w.Graph); err != nil || b.Claim == nil {
		return err
	}
	if wait && v.Bytes() > stagedLeast*d.Layout.Little {
		d.await(func() bool { return d.mapped(b.At.Arena) })
	}
	if why := d.missing(b.At.Arena); why != "" {
		b.Claim.Release()
		b.Claim, b.Why, b.Late = nil, why, true
	}
	return nil
}

// missing says which rank cannot reach an extent of this rank, or "".
func (d *Device) missing(extent uint32) string {
	c := d.c
	peer, why := c.Domain().Exports.Missing(extent)
	if peer < 0 {
		return ""
	}
	for r := range c.Team().Peers {
		if r != c.Team().Rank() && c.DevicePeer(r).Number() == peer {
			return fmt.Sprintf("rank %d %s", c.Team().Name(r), why)
		}
	}
	return fmt.Sprintf("a rank of another communicator %s", why)
}

// wait waits until s has done what is queued. It ends early with an error, which breaks the communicator.
func (d *Device) wait(ctx context.Context, s *Stream, k team.OpKind) error {
	c := d.c
	cancelled := false
	err := s.Await(func(waited time.Duration) error {
		if ctx.Err() != nil && !cancelled {
			cancelled = true // kernels end soon, and until then they use the memory
			c.Fail(d.error(k, d.ops, "wait", -1, reason.Ended(ctx)))
		}
		if waited > time.Duration(c.Team().Timeout.Load())+WaitGrace {
			return fmt.Errorf("what is queued has not ended after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
		}
		return nil
	})
	if err != nil {
		return d.failed(k, err)
	}
	if e := c.Broken(); e != nil {
		return e
	}
	return nil
}

// WaitGrace is how much longer than a kernel's own deadline the host waits for it: work of others may come first.
const WaitGrace = 10 * time.Second

// failed breaks the communicator with what the driver said: this rank has not taken part in an operation, or its device
// has ceased to work.
func (d *Device) failed(k team.OpKind, err error) error {
	if err == nil {
		return nil
	}
	return d.c.Fail(d.error(k, d.ops, "device", -1, err))
}

// FailDevice is failed, outside of a turn. Implements StreamUser.
func (d *Device) FailDevice(op string, err error) {
	d.c.FailOpen(&fault.Error{Op: op, Rank: d.c.Rank(), Peer: -1, Host: d.c.Hostname(d.c.Rank()), Step: "device",
		Device: d.Domain.Context.Device(), Err: err})
}
