package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/turn"
)

// View is a communicator as the caller sees it: with a stream that operations queue on, or a recorder of them.
type View struct {
	*Comm
	Stream   *Stream
	Recorder Recorder
}

// Begin returns an empty Work for the caller to fill and pass to End. On a plain view, and on one host on a view with a
// device stream, it is the communicator's own Work, and the caller's turn begins here: so a call costs no allocation and no
// copy.
func (v *View) Begin() (*team.Work, error) {
	switch {
	case v.Recorder != nil, v.Comm.recording.Load() != nil: // End records it, or refuses it
		if v.Comm.size == 0 {
			return nil, v.Err()
		}
		if v.Recorder != nil {
			return v.Recorder.Begin(), nil
		}
		return spare.Get().(*team.Work), nil
	case v.Stream != nil && v.Stream.device != nil && !v.Comm.SpansHosts():
		v.Comm.turn.Run()
		return &v.Comm.team.Work, nil
	case v.Stream != nil:
		return spare.Get().(*team.Work), nil
	}
	if err := v.Comm.Enter(); err != nil {
		return nil, err
	}
	return &v.Comm.team.Work, nil
}

// End runs w, queues it on the view's stream, or passes it to the view's recorder.
func (v *View) End(ctx context.Context, w *team.Work) error {
	ctx = Context(ctx)
	switch {
	case v.Recorder != nil:
		return v.Recorder.Record(v.Comm, w)
	case w != &v.Comm.team.Work:
		err := v.submitOne(ctx, w)
		*w = team.Work{}
		spare.Put(w)
		return err
	case v.Stream != nil:
		queuing := v.Tracer.Begin(ctx, w.Kind.String())
		err := v.Stream.device.Launch(ctx, v.Comm)
		queuing.End()
		return err
	}
	err := v.Comm.runOwn(ctx)
	v.Comm.turn.Leave()
	return err
}

// spare has empty works for calls that do not run at once.
var spare = sync.Pool{New: func() any { return new(team.Work) }}

// submitOne queues w on a stream, or handles a plain view whose communicator records, or did at the call. It copies
// *w.
func (v *View) submitOne(ctx context.Context, w *team.Work) error {
	if err := v.Comm.Barred(w, w.Kind.String()); err != nil {
		return err
	}
	if v.Stream != nil {
		return v.Stream.enqueue(v.Comm, ctx, []team.Work{*w}, false, nil)
	}
	if err := v.Comm.Enter(); err != nil {
		return err
	}
	defer v.Comm.turn.Leave()
	v.Comm.team.Work = *w
	return v.Comm.runOwn(ctx)
}

// SubmitAll runs or queues ws in order as one operation, which errors call op: nothing else of this communicator runs
// between them. after, if not nil, is called once when they are over or were refused. Works run where they are, and only
// those of a graph can be run again.
func (v *View) SubmitAll(ctx context.Context, op string, ws []team.Work, after func()) error {
	ctx = Context(ctx)
	if err := v.submittable(op, ws); err != nil || len(ws) == 0 {
		if after != nil {
			after()
		}
		return err
	}
	if v.Recorder == nil && (v.Stream == nil || v.Stream.device != nil) {
		defer v.Tracer.Begin(ctx, op).End()
	}
	if v.Stream != nil && v.Recorder == nil {
		return v.Stream.enqueue(v.Comm, ctx, ws, true, after)
	}
	if after != nil {
		defer after()
	}
	if v.Recorder != nil {
		for i := range ws {
			w := v.Recorder.Begin()
			*w = ws[i]
			if err := v.Recorder.Record(v.Comm, w); err != nil {
				return err
			}
		}
		return nil
	}
	c := v.Comm
	var k *turn.Ticket
	var ok bool
	c.inOrder(ws, func() { k, ok = c.turn.Enter() })
	if err := c.entered(k, ok); err != nil {
		return err
	}
	err := c.runAll(ctx, ws, true)
	c.turn.Leave()
	return err
}

// submittable returns why nothing can be submitted, or nil. An empty ws only needs a usable communicator.
func (v *View) submittable(op string, ws []team.Work) error {
	if len(ws) == 0 {
		return v.Err()
	}
	if v.Recorder != nil {
		return nil
	}
	return v.Comm.Barred(&ws[0], op)
}

// Enter begins a blocking call; Leave ends it.
func (c *Comm) Enter() error {
	k, ok := c.turn.Enter()
	if k == nil && ok {
		return nil
	}
	return c.entered(k, ok)
}

// inOrder gives works their turn, by take, and the messages of host memory among them, which are the last work, their
// places, in one step, so that both orders are the same. If that fails, the peers are told in place of the first work.
func (c *Comm) inOrder(works []team.Work, take func()) {
	messages := works[len(works)-1].Other
	if messages == nil {
		take()
		return
	}
	c.placing.Lock()
	defer c.placing.Unlock()
	if err := messages.Place(); err != nil {
		works[0].Err = Cause(err)
	}
	take()
}

// entered waits for a blocking call's turn.
func (c *Comm) entered(k *turn.Ticket, ok bool) error {
	if !ok {
		return c.LocalError("collective", fmt.Errorf("another goroutine's call runs on this Comm, which takes one "+
			"at a time (wait for it, or use a Dup for calls side by side): %w", fault.ErrBusy))
	}
	if k != nil {
		<-k.Ready // earlier operations have deadlines, so this wait ends
		if c.closing.Load() {
			c.turn.Leave()
			return c.LocalError("collective", ErrCommClosed)
		}
	}
	return nil
}

// EnterQueue begins a call that waits its turn behind queued operations; Leave ends it.
func (c *Comm) EnterQueue() { c.turn.Run() }

// Leave ends a call, and lets the next queued one begin.
func (c *Comm) Leave() { c.turn.Leave() }

// runAll runs ws in order until the first error, which the other ranks get too; together is for LastOp.
func (c *Comm) runAll(ctx context.Context, ws []team.Work, together bool) (err error) {
	c.inGroup, c.fresh = together, true
	defer func() { c.inGroup = false }()
	fuse := 1 // how many calls may travel together
	if c.fuses() {
		fuse = team.MaxFused
	}
	all := len(ws)
	for n := 0; len(ws) > 0; ws = ws[n:] {
		if n = 1; ws[0].Other != nil {
			err = ws[0].Other.Run(ctx, true)
		} else if ws[0].Kernel.Name != "" && c.device != nil {
			n, err = c.device.PerformSome(ctx, ws, together)
		} else {
			n, err = c.runSome(ctx, ws, &fuse)
		}
		if err != nil {
			return c.nameCall(err, all-len(ws), all)
		}
	}
	return nil
}

// nameCall adds to err which call of a group or graph it is about, if the communicator is still usable: later calls
// return the error that broke it.
func (c *Comm) nameCall(err error, i, all int) error {
	e, ok := err.(*fault.Error)
	if !ok || all == 1 || c.broken.Load() != nil {
		return err
	}
	named := *e
	named.Err = fmt.Errorf("call %d of %d: %w", i+1, all, e.Err)
	return &named
}

// runSome runs the first of ws, and those behind it that can travel with it, at most fuse. It lowers fuse if fewer than
// offered could: all ranks find the same.
func (c *Comm) runSome(ctx context.Context, ws []team.Work, fuse *int) (n int, err error) {
	if *fuse > 1 {
		if k := c.team.Fusable(ws[:min(len(ws), *fuse)]); k > 1 {
			if n, err = c.runFused(ctx, ws[:k]); n < k {
				*fuse = n
			}
			if n > 0 || err != nil {
				return n, err
			}
		}
	}
	if ws[0].Graph { // which launches it again
		c.team.Work = ws[0]
		return 1, c.runOwn(ctx)
	}
	c.team.Current = &ws[0]
	err = c.run(ctx, &ws[0])
	c.team.Current = nil
	return 1, err
}

// runOwn runs the operation Team.Work.
func (c *Comm) runOwn(ctx context.Context) error {
	err := c.run(ctx, &c.team.Work)
	c.team.Work = team.Work{} // empty for the next Begin; also lets go of the user's memory
	return err
}

// run runs w, the running operation. It is this communicator's turn.
func (c *Comm) run(ctx context.Context, w *team.Work) error {
	if c.Tracer != nil {
		defer c.trace(ctx, w).End()
	}
	err := c.perform(ctx, w)
	if err != nil && c.stage != nil && c.broken.Load() != nil {
		c.disconnectHosts()
		if e, ok := err.(*fault.Error); ok && e.Op == hosts.NoCall {
			err = c.team.Errorf(e.Step, e.Peer, e.Err)
		}
	}
	w.Release()
	if err != nil && w.Path != nil && w.Path.Ended != nil {
		w.Path.Ended(err)
	}
	return err
}

// performDevice is a separate function to keep the path of host operations small.
//
//go:noinline
func (c *Comm) performDevice(ctx context.Context, w *team.Work) error {
	if c.device == nil {
		return c.LocalError(w.Kind.String(), c.gpuWhy)
	}
	return c.device.Perform(ctx, w)
}

func (c *Comm) perform(ctx context.Context, w *team.Work) error {
	if w.Kernel.Name != "" {
		return c.performDevice(ctx, w)
	}
	if e := c.broken.Load(); e != nil {
		return e
	}
	if c.closing.Load() {
		return c.LocalError(w.Kind.String(), ErrCommClosed)
	}
	if w.Path != nil && w.Path.Drive != nil && w.Err == nil {
		return c.drive(ctx, w)
	}
	c.team.Seq++
	spin.Claim(unsafe.Pointer(&c.team.Me.Desc[c.team.Seq&1]))
	c.team.ClaimEager(w.Eager.Bytes)
	bad := w.Err
	if bad == nil {
		bad = w.Hold()
	}
	if ctx.Err() != nil {
		if bad == nil {
			bad = reason.Ended(ctx)
		}
		ctx = context.WithoutCancel(ctx) // still agree with the peers, for Options.Timeout at most
	}
	path := w.Path
	if bad != nil {
		path = &Refused
	}
	timed := false
	var began, published, came uint64 // if timed
	if path.Acquire != nil {
		if timed = c.Measures(w); timed {
			began = flight.Now()
		}
		bad = path.Acquire(&c.team, w)
	}
	if path.Offer != nil && bad == nil {
		path.Offer(&c.team, w)
	}
	sig := c.team.Publish(w, bad)
	// While the descriptors are on their way. The note comes last, since its lock waits until this one's is out.
	if !path.Quick || !c.team.Flight.Again(sig, path.Name) {
		c.begin(w, sig, c.team.Number(), path.Name, began)
	}
	if path.Acquire == nil {
		c.note(w, path.Name)
	}
	if timed {
		published = flight.Now()
	}
	err := c.team.Agree(ctx, w, bad)
	for err == team.ErrNotFused {
		c.team.Seq++
		c.team.Parts++ // the exchange was no operation
		if path.Offer != nil && bad == nil {
			path.Offer(&c.team, w)
		}
		c.team.Publish(w, bad)
		err = c.team.Agree(ctx, w, bad)
	}
	if c.stage != nil {
		if err = c.stage.Agree(ctx, w, bad, err); err == nil && path.Lay != nil {
			c.team.Seq++
			c.team.Parts++ // it is no operation of its own
			c.team.Publish(w, nil)
			err = c.stage.Compare(ctx, w, c.team.Agree(ctx, w, nil))
		}
	}
	if bad != nil && err != nil { // not that the others have ended since, perhaps because of it
		err = c.team.Refused(bad)
	}
	if timed {
		came = flight.Now()
	}
	if !path.Quick {
		c.agreed(w, came, err)
	}
	if err == nil && path.Check != nil {
		if about, cerr := path.Check(&c.team, w); cerr != nil {
			err = c.team.Errorf(team.StepAgree, about, cerr)
		}
	}
	if err == nil && path.Run != nil {
		if err = path.Run(ctx, &c.team, w); err != nil {
			err = c.failed(err)
		}
	}
	if path.Acquire != nil {
		if bad != nil {
			path = &Refused
		}
		c.note(w, path.Name) // how it went is known only now
		if timed && bad == nil && err == nil {
			now := flight.Now()
			c.NoteTook(w.Kind, c.team.Number(), time.Duration(now-began), time.Duration(came-published))
			c.team.Flight.End(now)
		}
	}
	if err == nil && path.Quick {
		c.team.Flight.Finish()
		return nil
	}
	c.over(w, err)
	return err
}

// Refused is the path of an operation whose arguments are bad.
var Refused = team.Path{Name: team.Refused}

// failed breaks the communicator with an algorithm's error.
func (c *Comm) failed(err error) error {
	var e *fault.Error
	if !errors.As(err, &e) {
		e = c.team.Errorf(c.team.Running().Path.Name, -1, err)
	}
	return c.Fail(e)
}
