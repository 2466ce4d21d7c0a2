package onesided

import (
	"context"
	"time"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Side is what channels and semaphores have in common: uses, which call signals.
type Side struct {
	uses
	counters
	*signals
	self   closable  // the Channel or the Semaphore
	device deviceEnd // nil for host memory

	misses int       // of Poll
	looked time.Time // for what may keep its signals from coming
}

// deviceEnd is an end on a device: a gpuend.End, or a gpuend.FarEnd.
type deviceEnd interface {
	Launch(ctx context.Context, s *engine.Stream, steps []gpuend.Step) error
	Close(quick bool) error
}

func newSide(sp *Space, peer int, self closable) Side {
	return Side{signals: &signals{sp: sp, c: sp.c, peer: peer, slot: -1, far: sp.far(peer, true)}, self: self}
}

// Begin begins an operation, which is a use; End ends it.
func (e *Side) Begin(ctx context.Context) error {
	ctx = engine.Context(ctx)
	if !e.Enter() { // as begin does, which would look for the uses at run time
		if err := told(e.self, e.c, true); err != nil {
			return err
		}
	}
	if b := e.c.Broken(); b != nil {
		e.End()
		return b
	}
	if ctx.Err() != nil {
		e.End()
		return reason.Ended(ctx)
	}
	return nil
}

// BeginLook begins a use that is no operation; End ends it.
func (e *Side) BeginLook() error {
	if !e.Enter() {
		if err := told(e.self, e.c, false); err != nil {
			return err
		}
	}
	if b := e.c.Broken(); b != nil {
		e.End()
		return b
	}
	return nil
}

// End ends a use.
func (e *Side) End() {
	if e.Leave() {
		finish(e.self, true)
	}
}

// Wait waits for a signal. Call it within a use.
func (e *Side) Wait(ctx context.Context) error {
	next := e.awaited + 1
	if e.far != nil {
		return e.waitFar(ctx, next)
	}
	if err := waitSignal(ctx, e.sp, e.self, &e.theirs.state, e.peer, e.in, next); err != nil {
		return err
	}
	e.awaited = next
	return nil
}

// What Poll does in vain, so that a loop of it ends, too, when no signal can come any more.
const (
	missesPerLook = 16 // between readings of the clock
	lookEvery     = 5 * time.Millisecond
)

// Poll takes a signal if there is one. Now and then it looks whether one can still come: its error is that of a wait. Call it within
// a use.
func (e *Side) Poll() (bool, error) {
	if e.take() {
		return true, nil
	}
	if e.misses++; e.misses%missesPerLook != 0 {
		return false, nil
	}
	now := time.Now()
	if now.Sub(e.looked) < lookEvery {
		return false, nil
	}
	e.looked = now
	w := e.waiting(context.Background(), "poll", "signal")
	err := w.glance()
	if err == nil {
		return false, nil
	}
	if e.take() { // it came before what is wrong
		return true, nil
	}
	return false, w.lost(err)
}

// PollFar moves on what comes from a peer on another host.
func (e *Side) PollFar() {
	if e.far != nil {
		e.far.pair.Poll()
	}
}

// waitFar is Wait for a peer on another host.
func (e *Side) waitFar(ctx context.Context, next uint64) error {
	ready := func() bool { return team.Reached(e.in.Load(), next) }
	if !e.far.look(looksFar, ready) {
		if err := waitSignal(ctx, e.sp, e.self, &e.theirs.state, e.peer, e.in, next); err != nil {
			return err
		}
	}
	e.awaited = next
	return nil
}

// wait waits until ready, which it calls often, returns true.
func (e *Side) wait(ctx context.Context, op, step string, ready func() bool) error {
	const looks = team.LooksPerPoll / 8
	if within(looks, ready) {
		return nil
	}
	w := e.waiting(ctx, op, step)
	return w.until(looks, ready)
}

func (e *Side) waiting(ctx context.Context, op, step string) waiting {
	w := waiting{WaitState: team.WaitState{Op: op, Ctx: ctx, Peer: e.peer, Step: step}, c: e.c, of: e.self, sp: e.sp}
	if e.theirs != nil {
		w.theirs = &e.theirs.state
	}
	return w
}

// Comm returns the communicator.
func (e *Side) Comm() *engine.Comm { return e.c }

// Peer returns the other end's rank.
func (e *Side) Peer() int { return e.peer }

// Error returns err as an error of a call.
func (e *Side) Error(op string, err error) error { return peerError(e.c, op, e.peer, err) }

// Close closes this end.
func (e *Side) Close() error {
	if err := shutFor(e.self, e.c, e.device != nil); err != nil {
		return peerError(e.c, "close", e.peer, err)
	}
	return nil
}

func (e *Side) failed(err error) { e.c.Domain().Failed(err) }
