package engine

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// View is a communicator as the caller sees it: with a stream that operations queue on, or a recorder that takes them.
type View struct {
	*Comm
	Stream   *Stream
	Recorder Recorder
}

// Begin gives the caller an empty Work to fill and to pass to End. On a plain view, and on one with a stream of a device,
// it is the communicator's own, and it is the caller's turn from here on: a call costs no allocation and no copy.
func (v *View) Begin() (*Work, error) {
	switch {
	case v.Recorder != nil, v.Comm.recording.Load() != nil: // then End refuses it
		if v.Comm.size == 0 {
			return nil, v.Err()
		}
		return new(Work), nil
	case v.Stream != nil && v.Stream.device != nil:
		v.Comm.turn.run()
		return &v.Comm.work, nil
	case v.Stream != nil:
		return new(Work), nil
	}
	if err := v.Comm.enter(); err != nil {
		return nil, err
	}
	return &v.Comm.work, nil
}

// End runs w, queues it on the view's stream, or hands it to the view's recorder.
func (v *View) End(ctx context.Context, w *Work) error {
	ctx = Context(ctx)
	switch {
	case v.Recorder != nil:
		return v.Recorder.Record(v.Comm, *w)
	case w != &v.Comm.work:
		return v.submitOne(ctx, w)
	case v.Stream != nil:
		return v.Stream.launch(ctx, v.Comm)
	}
	err := v.Comm.run(ctx)
	v.Comm.turn.leave()
	return err
}

// submitOne queues w on a stream of the host, or finds that the communicator is recording, or was when the call began.
func (v *View) submitOne(ctx context.Context, w *Work) error {
	if err := v.Comm.barred(w, w.Kind.String()); err != nil {
		return err
	}
	if v.Stream != nil {
		return v.Stream.enqueue(v.Comm, ctx, []Work{*w}, false, nil)
	}
	if err := v.Comm.enter(); err != nil {
		return err
	}
	defer v.Comm.turn.leave()
	v.Comm.work = *w
	return v.Comm.run(ctx)
}

// SubmitAll runs or queues ws in order as one, which people call op: nothing of this communicator comes between. after,
// if it is not nil, is called once when that is over, or was refused.
func (v *View) SubmitAll(ctx context.Context, op string, ws []Work, after func()) error {
	ctx = Context(ctx)
	if err := v.submittable(op, ws); err != nil || len(ws) == 0 {
		if after != nil {
			after()
		}
		return err
	}
	if v.Stream != nil && v.Recorder == nil {
		return v.Stream.enqueue(v.Comm, ctx, ws, true, after)
	}
	if after != nil {
		defer after()
	}
	if v.Recorder != nil {
		for _, w := range ws {
			if err := v.Recorder.Record(v.Comm, w); err != nil {
				return err
			}
		}
		return nil
	}
	c := v.Comm
	if err := c.enter(); err != nil {
		return err
	}
	err := c.runAll(ctx, ws, true)
	c.turn.leave()
	return err
}

// submittable is why nothing can be submitted, or nil. No works are no operation, of a usable communicator.
func (v *View) submittable(op string, ws []Work) error {
	if len(ws) == 0 {
		return v.Err()
	}
	if v.Recorder != nil {
		return nil
	}
	return v.Comm.barred(&ws[0], op)
}

// enter begins a blocking call; turn.leave ends it.
func (c *Comm) enter() error {
	k, ok := c.turn.enter()
	if !ok {
		return c.local("collective", fmt.Errorf("another goroutine's call runs on this Comm, which takes one "+
			"at a time (wait for it, or use a Dup for calls side by side): %w", fault.ErrBusy))
	}
	if k != nil {
		<-k.ready // what is queued before it has a deadline
		if c.closing.Load() {
			c.turn.leave()
			return c.local("collective", errCommClosed)
		}
	}
	return nil
}

// runAll runs ws in order, for LastOp together or not. It ends with the first error: the other ranks get it too, and end
// there as well.
func (c *Comm) runAll(ctx context.Context, ws []Work, together bool) error {
	c.together, c.fresh = together, true
	defer func() { c.together = false }()
	for i := range ws {
		c.work = ws[i]
		if err := c.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run does the operation c.work; it is this communicator's turn.
func (c *Comm) run(ctx context.Context) error {
	w := &c.work
	err := c.perform(ctx, w)
	w.letGo()
	if err != nil && w.Path != nil && w.Path.Ended != nil {
		w.Path.Ended(err)
	}
	*w = Work{} // for the next Begin; and the user's memory is not kept alive
	return err
}

func (c *Comm) perform(ctx context.Context, w *Work) error {
	if w.Kernel.Name != "" {
		return c.performDevice(ctx, w)
	}
	if e := c.broken.Load(); e != nil {
		return e
	}
	if c.closing.Load() {
		return c.local(w.Kind.String(), errCommClosed)
	}
	c.seq++
	spin.Claim(unsafe.Pointer(&c.me.desc[c.seq&1]))
	c.claimEager(w.EagerBytes)
	bad := w.Err
	if bad == nil {
		bad = w.hold()
	}
	if ctx.Err() != nil {
		if bad == nil {
			bad = ended(ctx)
		}
		ctx = context.WithoutCancel(ctx) // the peers must still be heard out, for Options.Timeout at most
	}
	path := w.Path
	if bad != nil {
		path = &refused
	}
	if path.Acquire != nil {
		bad = path.Acquire(c, w)
	}
	if path.Offer != nil && bad == nil {
		path.Offer(c, w)
	}
	c.publish(w, bad)
	if path.Acquire == nil {
		c.note(w, path.Name) // while the peers' descriptors are on their way
	}
	err := c.agree(ctx, w, bad)
	if err == nil && path.Check != nil {
		if about, cerr := path.Check(c, w); cerr != nil {
			err = c.errorf(stepAgree, about, cerr)
		}
	}
	if err == nil && path.Run != nil {
		if err = path.Run(ctx, c, w); err != nil {
			err = c.failed(err)
		}
	}
	if path.Acquire != nil {
		if bad != nil {
			path = &refused
		}
		c.note(w, path.Name) // only now is it known how it went
	}
	return err
}

// refused is the path of an operation whose arguments are bad.
var refused = Path{Name: "refused"}

// failed breaks the communicator with what an algorithm returned.
func (c *Comm) failed(err error) error {
	var e *fault.Error
	if !errors.As(err, &e) {
		e = c.errorf(c.work.Path.Name, -1, err)
	}
	return c.fail(e)
}

// refusals are the sentinels that a refusal carries to the peers.
var refusals = []error{fault.ErrArgument, fault.ErrStale, fault.ErrLimit, hw.ErrNotSupported, fault.ErrInUse,
	fault.ErrClosed, context.Canceled, context.DeadlineExceeded, fault.ErrPeerLost, fault.ErrTimeout, fault.ErrMismatch,
	fault.ErrAborted, fault.ErrBusy}

// blame is an error about a rank of the communicator at hand.
type blame struct {
	rank int
	error
}

func (b *blame) Unwrap() error { return b.error }

// blamed is the rank that err is about, or otherwise if it is about none.
func blamed(err error, otherwise int) int {
	if b, ok := errors.AsType[*blame](err); ok {
		return b.rank
	}
	return otherwise
}

// refusalCode is what stands for err's sentinel, 0 if it has none; refusalOf is the way back.
func refusalCode(err error) int {
	for i, s := range refusals {
		if errors.Is(err, s) {
			return i + 1
		}
	}
	return 0
}

func refusalOf(code int) error {
	if code < 1 || code > len(refusals) {
		return nil
	}
	return refusals[code-1]
}

func (c *Comm) publish(w *Work, bad error) {
	slot := c.seq & 1
	d := &c.me.desc[slot]
	if bad != nil {
		c.me.refusals[slot].set(bad.Error())
		d.refusal = uint64(blamed(bad, -1)+1)<<32 | uint64(refusalCode(bad))
		d.sig = signature(KindRefused, 0, 0, 0, 0)
	} else {
		d.sig = w.Signature()
		if w.Path.Acquire != nil {
			*d.buffers() = buffers{w.SrcBuf.word(), w.DstBuf.word()}
		}
	}
	if c.seq%progressEvery == 0 {
		c.Progress(0)
	}
	spin.Release(&d.seq, c.seq)
}

// Progress words wrap around after 1<<32 operations, so that reached must not see one that is half of that old.
const progressEvery = 1 << 20

const stepAgree = "agree"

// agree waits until all ranks have published this operation, and returns an error, the same fact on all of them, if
// some rank refused or the signatures differ.
func (c *Comm) agree(ctx context.Context, w *Work, bad error) error {
	if c.groups != nil {
		return c.agreeByGroup(ctx, w, bad)
	}
	slot := c.seq & 1
	mine := c.me.desc[slot].sig
	same := true
	// From the next rank on, so that not all ranks look at one line at once.
	for i := 1; i < c.size; i++ {
		r := c.rank + i
		if r >= c.size {
			r -= c.size
		}
		d := &c.peers[r].area.desc[slot]
		if !reached(d.seq.Load(), c.seq) {
			if err := c.Wait(ctx, &d.seq, c.seq, r, stepAgree); err != nil {
				return err
			}
		}
		same = same && d.sig == mine
	}
	if same && bad == nil {
		return nil
	}
	return c.disagreement(slot, bad)
}

// disagreement says what is wrong with this rank's own arguments, or who refused, or who stands against the majority.
func (c *Comm) disagreement(slot uint64, bad error) error {
	if bad != nil {
		return c.errorf("", blamed(bad, -1), bad)
	}
	votes := map[uint64]int{}
	for r := range c.peers {
		d := &c.peers[r].area.desc[slot]
		if d.sig>>59 == uint64(KindRefused) {
			why := c.peers[r].area.refusals[slot].get()
			about := int(d.refusal>>32) - 1
			if about < 0 || about >= c.size {
				about = r
			}
			return c.errorf(stepAgree, about, fmt.Errorf("rank %d refused: %w", r,
				&toldError{why, refusalOf(int(uint32(d.refusal)))}))
		}
		votes[d.sig]++
	}
	most := c.peers[0].area.desc[slot].sig
	for r := range c.peers {
		if s := c.peers[r].area.desc[slot].sig; votes[s] > votes[most] {
			most = s
		}
	}
	var odd int
	for r := range c.peers {
		if c.peers[r].area.desc[slot].sig != most {
			odd = r
			break
		}
	}
	return c.errorf(stepAgree, odd, fmt.Errorf("rank %d called %s, %d of %d ranks %s: %w", odd,
		Describe(c.peers[odd].area.desc[slot].sig), votes[most], c.size, Describe(most), fault.ErrMismatch))
}

// Where says how the ranks hold the buffers of the running operation.
type Where struct {
	AllSrc, AllDst bool // every rank's source, or destination, is direct
	InPlace        bool // some direct source is its rank's destination as well
}

// Buffers is where each rank's source and destination of the running operation are in this process: their first
// srcBytes and dstBytes bytes, and nil for a buffer of another rank that is staged, and for all destinations if dstBytes
// is 0. Ask only for what every rank keeps until this one has done its last step. The slices are the communicator's,
// until the next operation.
func (c *Comm) Buffers(srcBytes, dstBytes int) (srcs, dsts []unsafe.Pointer, how Where, err error) {
	how = Where{AllSrc: true, AllDst: true}
	for r := range c.peers {
		d := c.peers[r].area.desc[c.seq&1].buffers()
		how.AllSrc = how.AllSrc && d.src.generation != 0
		how.AllDst = how.AllDst && d.dst.generation != 0
		how.InPlace = how.InPlace || d.src.generation != 0 && d.src == d.dst
		if c.srcs[r], err = c.resolve(r, &d.src, 0, srcBytes); err != nil {
			return nil, nil, how, err
		}
		if c.dsts[r] = nil; dstBytes == 0 {
			continue
		}
		if c.dsts[r], err = c.resolve(r, &d.dst, 0, dstBytes); err != nil {
			return nil, nil, how, err
		}
	}
	c.srcs[c.rank], c.dsts[c.rank] = c.work.Src.Ptr, c.work.Dst.Ptr
	return c.srcs, c.dsts, how, nil
}

// Source is where n bytes of a rank's source, from byte off on, are in this process; nil if it is another rank's and
// staged.
func (c *Comm) Source(rank, off, n int) (unsafe.Pointer, error) {
	if rank == c.rank {
		return unsafe.Add(c.work.Src.Ptr, off), nil
	}
	return c.resolve(rank, &c.peers[rank].area.desc[c.seq&1].buffers().src, off, n)
}

// Destination is as Source for a rank's destination.
func (c *Comm) Destination(rank, off, n int) (unsafe.Pointer, error) {
	if rank == c.rank {
		return unsafe.Add(c.work.Dst.Ptr, off), nil
	}
	return c.resolve(rank, &c.peers[rank].area.desc[c.seq&1].buffers().dst, off, n)
}

// Direct reports whether a rank's source of the running operation is direct.
func (c *Comm) Direct(rank int) bool {
	return c.peers[rank].area.desc[c.seq&1].buffers().src.generation != 0
}

// DirectDst reports whether a rank's destination of the running operation is direct.
func (c *Comm) DirectDst(rank int) bool {
	return c.peers[rank].area.desc[c.seq&1].buffers().dst.generation != 0
}

func (c *Comm) resolve(rank int, w *bufWord, off, n int) (unsafe.Pointer, error) {
	if w.generation == 0 || rank == c.rank {
		return nil, nil
	}
	p, err := c.peers[rank].mem.Resolve(w.location().Add(uintptr(off)), n)
	if err != nil {
		return nil, c.errorf("import", rank, err)
	}
	return p, nil
}

// Scratch is one pointer a rank for the running operation to use.
func (c *Comm) Scratch() []unsafe.Pointer { return c.scratch }

// Progress says that this rank has done n steps of the running operation: what it wrote before is for its peers to
// read, what it read before is for its peers to overwrite.
func (c *Comm) Progress(n uint64) { spin.Release(&c.me.progress, c.seq<<32+n) }

// WaitProgress waits until rank has done n steps of the running operation.
func (c *Comm) WaitProgress(ctx context.Context, rank int, n uint64, step string) error {
	p := &c.peers[rank].area.progress
	if reached(p.Load(), c.seq<<32+n) {
		return nil
	}
	return c.Wait(ctx, p, c.seq<<32+n, rank, step)
}
