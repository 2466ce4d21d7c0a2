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

// LaunchAll queues works on s, a stream of a device, in order. Wrong arguments of a rank become errors of its stream, as
// on the host, and of the other ranks' streams.
func (s *Stream) LaunchAll(ctx context.Context, c *engine.Comm, works []team.Work, group bool) error {
	c.EnterQueue()
	defer c.Leave()
	c.NoteInGroup(group)
	defer c.NoteInGroup(false)
	if err := launchable(c, s.s); err != nil {
		return err
	}
	d := DeviceOf(c)
	var first error // refuses the works behind it too, since the other ranks have queued the whole group
	for n := 0; len(works) > 0; works = works[n:] {
		n = 1
		if o := works[0].Other; o != nil { // also after a refusal: the other ranks have queued theirs
			if err := o.Run(ctx, true); err != nil {
				return err
			}
			continue
		}
		if group {
			n = d.groupable(works)
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

// Launch is LaunchAll for c's Team().Work alone. The caller has the turn; Launch ends it.
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

// launchable returns why nothing of c can be queued on s, or nil. s may be a stream of the host.
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
	// The work that is queued now waits for all peers. The driver would not notice that one of them is gone.
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

// Perform does w on the communicator's own stream. Implements Accelerator.
func (d *Device) Perform(ctx context.Context, w *team.Work) error {
	c := d.c
	if err := launchable(c, d.own.s); err != nil {
		return err
	}
	if err := d.awaitStreams(ctx, w.Kind); err != nil {
		return err
	}
	var began time.Time
	if w.Kernel.DirectAccess && c.Measures(w) { // the other kernels may send packets, and are not timed
		began = time.Now()
	}
	refusal, err := d.queue(ctx, d.own, w)
	if err != nil {
		return err
	}
	err = d.outcome(ctx, w.Kind, refusal)
	c.Waited(err)
	if !began.IsZero() && err == nil {
		c.NoteTook(w.Kind, d.ops, time.Since(began), 0)
	}
	return err
}

// outcome waits for the work that a blocking call has queued, and returns the call's error.
func (d *Device) outcome(ctx context.Context, k team.OpKind, refusal error) error {
	if refusal != nil {
		ctx = context.WithoutCancel(ctx) // the peers still take part; this takes Options.Timeout at most
	}
	err := d.wait(ctx, d.own, k)
	if own := d.take(); err == nil {
		err = own
	}
	if refusal != nil {
		return refusal
	}
	return err
}

// awaitStreams waits, before a blocking call, for the work that was queued on other streams, so that the status after the call
// is the call's own.
func (d *Device) awaitStreams(ctx context.Context, k team.OpKind) error {
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

// queue queues w on s. It is called in the communicator's turn. A refusal says what is wrong with w on this rank; in the
// place of w a kernel was queued that tells the peers. After an error nothing was queued.
func (d *Device) queue(ctx context.Context, s *Stream, w *team.Work) (refusal, err error) {
	bad := w.Err
	if bad == nil && w.Kernel.Name == "" {
		bad = fmt.Errorf("memory of the host on a stream of %v: %w", s.s.Device(), fault.ErrArgument)
	}
	if bad == nil && ctx.Err() != nil {
		bad = reason.Ended(ctx)
	}
	captured := s.Captured()
	if bad == nil && captured {
		bad = d.retain(w)
	}
	if bad == nil {
		if w.Kernel.Multicast && !captured {
			d.nextCall(0)
		}
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
	d.c.Queued(w, algorithm, d.ops)
	if bad != nil {
		refusal = d.error(w.Kind, d.ops, "", -1, bad)
	}
	return refusal, nil
}

// launching describes what is queued next: a kernel, a copy or a graph. The device has one, so that calls do not allocate
// one.
type launching struct {
	f      *cuda.Function
	shape  cuda.Launch
	room   int32 // the room that the kernel takes, see Stream.Follows
	params kernels.VectorParams
	group  kernels.GroupParams
	step   kernels.CarryStepParams
	args   []byte // the kernel's parameters: a part of params, of group, or of another's memory
	paced  bool   // Stream.pace knows of it

	send, recv [kernels.MaxRanks]uint64

	copy  *team.Work
	graph *Graph
}

// start queues d.next on cu, the driver's stream of s. captured: somebody else is capturing it.
func (d *Device) start(s *Stream, cu *cuda.Stream, captured bool) error {
	l := &d.next
	switch {
	case l.copy != nil:
		return copyAlone(cu, l.copy)
	case l.graph != nil:
		s.Follows(0, 0) // a graph ends before the next kernel begins
		return l.graph.on(s, cu, captured)
	}
	if !s.Follows(l.room, d.Blocks) {
		l.shape.Early = false
	}
	return l.f.Launch(cu, l.shape, l.args)
}

// prepare sets d.next to the kernel or copy that does w. It holds the buffers and their registrations. w.Release gives
// them back as soon as the work is queued, because whoever frees their memory waits for the streams first. stage: prepare
// may make staging memory, and may wait for peers that have yet to map a large buffer.
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
	return d.set(w, d.early(w))
}

// set sets d.next to the kernel that does w, whose buffers have been found.
func (d *Device) set(w *team.Work, early bool) error {
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
	d.shape(k, blocks, early)
	return nil
}

// shape sets the launch of d.next, whose kernel is k, to that many blocks, or to the device's if that is fewer.
func (d *Device) shape(k loaded, blocks int, early bool) {
	grid := min(max(blocks, 1), d.Blocks)
	d.next.shape = cuda.Launch{Grid: grid, Block: d.Threads, Early: early}
	d.next.room = int32(grid)
	if !k.pairs {
		d.next.room *= RoomBlocks
	}
}

// counts sets the parameters for w's counts.
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

// early reports whether w's kernel is launched early if there is room for it. This hides the cost of a launch, which
// matters for small work.
func (d *Device) early(w *team.Work) bool { return !w.Kernel.DirectAccess && d.Domain.Context.Early() }

// refuse sets d.next to a kernel that tells the peers that this rank takes no part in that many operations, and why. If
// last, nothing of a group follows, and the refusal is of all the operations that the peers have put into their kernel.
func (d *Device) refuse(why error, operations int, last bool) error {
	p := &d.next.params.Params
	*p = d.Params
	p.Count, d.next.args = uint64(operations), kernels.Bytes(p)
	if last {
		operations = team.AllGrouped
	}
	p.Signature = team.RefusalSignature(operations, reason.Code(why))
	d.next.shape, d.next.room = cuda.Launch{Grid: 1, Block: d.Threads}, RoomBlocks
	k, err := d.kernel(kernels.Barrier, dtype.Invalid)
	d.next.f = k.f
	return err
}

// alone reports whether w is a mere copy. In a communicator of one rank every collective is, except those that change the
// data and those with counts, which may not cover the whole buffer.
func (d *Device) alone(w *team.Work) bool {
	return d.c.Size() == 1 && !w.Changes() && !w.Kernel.Counts
}

func copyAlone(cu *cuda.Stream, w *team.Work) error {
	if w.Src.Bytes() == 0 || w.Dst.Bytes() == 0 || w.Dst.Ptr == w.Src.Ptr {
		return nil
	}
	return cu.Copy(cuda.Addr(uintptr(w.Dst.Ptr)), cuda.Addr(uintptr(w.Src.Ptr)), w.Src.Bytes())
}

// retain registers w's buffers for as long as the communicator lives: somebody else is capturing the stream and may
// replay w at any time.
func (d *Device) retain(w *team.Work) error {
	w.Graph = true
	return d.Keep(&w.Src, &w.Dst)
}

// Keep registers the memory of vs for as long as the communicator lives: somebody may replay work on it at any time.
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
	if fit*RoomBlocks < d.Room.PerSM {
		return loaded{}, fmt.Errorf("kernel %s takes the room of %d others: %w", name, d.Room.PerSM/max(fit, 1), fault.ErrLimit)
	}
	k := loaded{f, fit >= d.Room.PerSM}
	d.functions[key] = k
	return k, nil
}

// loaded is a kernel that is loaded on the device.
type loaded struct {
	f     *cuda.Function
	pairs bool // a multiprocessor has room for RoomBlocks blocks
}

type kernelKey struct {
	name string
	t    dtype.Type
}

// fill sets the parameters for w.
func (d *Device) fill(p *kernels.Params, w *team.Work) {
	p.Src, p.Dst = uint64(uintptr(w.Src.Ptr)), uint64(uintptr(w.Dst.Ptr))
	p.SrcWord, p.DstWord = WordOf(&w.SrcBuf), WordOf(&w.DstBuf)
	if at, extent, offset, ok := d.staging.Ready(); ok {
		p.Stage, p.StageWord = at, kernels.Word(extent, offset)
	}
	if w.Kernel.Multicast {
		p.Multi, p.Stage, p.StageWord = d.multi.object.Address(), uint64(d.multi.stage.Base()), 0
	}
	p.Signature, p.Count = w.Signature(), uint64(w.Count)
	p.Factor, p.Op, p.Root, p.Size = w.Factor, uint32(w.Red), uint32(w.Root), uint32(w.Type.Size())
	if w.Kernel.Push {
		p.Push = 1
	}
}

// WordOf returns where peers find a buffer, in the form that kernels take. It is 0 for a staged buffer.
func WordOf(b *team.Buf) uint64 {
	if b.Claim == nil {
		return 0
	}
	return kernels.Word(b.At.Arena, int(b.At.Offset))
}

// count publishes that n more collectives have been queued on the device; several in one kernel count as one. The caller
// has the communicator's turn.
func (d *Device) count(n uint64) {
	d.collectives += n
	d.c.Team().PublishQueued(d.collectives | d.uncounted)
}

// enqueue queues d.next on s, behind everything that this communicator has queued on other streams. captured: somebody
// else is capturing s.
func (d *Device) enqueue(s *Stream, captured bool) error {
	defer func() { d.next.copy, d.next.graph = nil, nil }()
	d.Watch()
	begin := d.Domain.BeginQueueing
	if d.next.paced {
		begin = d.Domain.beginPaced
	}
	done, err := begin(s)
	if err != nil {
		return err
	}
	defer done()
	d.launches.Add(1)
	return s.Use(func(cu *cuda.Stream) error {
		last := d.last.Load()
		if last == s && !captured { // the usual case: d has entered s already
			return d.start(s, cu, false)
		}
		s.Enter(d, d.Domain)
		if captured { // whoever captures it decides when it runs, and after what
			d.uncounted = team.Uncounted
			d.next.shape.Early = false // and may examine the capture by calls that do not support early launches
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

// acquire finds the registrations of w's buffers, if its kernel uses them.
func (d *Device) acquire(w *team.Work, wait bool) error {
	if w.Kernel.Multicast {
		return d.acquireMulticast(w, wait)
	}
	if !w.Kernel.DirectAccess {
		w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with its flags", "its own rank alone writes it"
		return nil
	}
	return w.AcquireBuffers(func(v *team.Vec, b *team.Buf) error { return d.AcquireBuffer(w, v, b, wait) })
}

// AcquireBuffer finds the registration of v, one of w's buffers. A buffer that a peer cannot reach is staged. If wait, it
// may wait for peers to map a large buffer, which takes less time than staging it.
func (d *Device) AcquireBuffer(w *team.Work, v *team.Vec, b *team.Buf, wait bool) error {
	c := d.c
	b.NotImported = false
	if err := c.Acquire(v, b, w.Graph); err != nil || b.Claim == nil {
		return err
	}
	if wait && v.Bytes() > stagedLeast*d.Layout.Little {
		d.await(func() bool { return d.mapped(b.At.Arena) })
	}
	if why := d.missing(b.At.Arena); why != "" {
		b.Claim.Release()
		b.Claim, b.Why, b.NotImported = nil, why, true
	}
	return nil
}

// missing returns which rank cannot reach an extent of this rank, and why, or "".
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

// wait waits until the work queued on s is done. If it ends early, with an error, the communicator is broken.
func (d *Device) wait(ctx context.Context, s *Stream, k team.OpKind) error {
	c := d.c
	cancelled := false
	err := s.Await(func(waited time.Duration) error {
		if ctx.Err() != nil && !cancelled {
			cancelled = true // the kernels will end soon; until then they use the memory, so the wait goes on
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

// WaitGrace is how much longer than a kernel's own deadline the host waits for it: others' work may come first.
const WaitGrace = 10 * time.Second

// failed breaks the communicator with an error of the driver: this rank has not taken part in an operation, or its device
// has failed.
func (d *Device) failed(k team.OpKind, err error) error {
	if err == nil {
		return nil
	}
	return d.c.Fail(d.error(k, d.ops, "device", -1, err))
}

// FailDevice is failed for callers outside of a turn. Implements StreamUser.
func (d *Device) FailDevice(op string, err error) {
	d.c.FailOpen(&fault.Error{Op: op, Rank: d.c.Rank(), Peer: -1, Host: d.c.Hostname(d.c.Rank()), Step: "device",
		Device: d.Domain.Context.Device(), Err: err})
}
