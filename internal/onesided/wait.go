package onesided

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// waiting is a wait of a channel or window for something from a peer. Its error concerns only this call, unless it has
// broken the communicator.
type waiting struct {
	team.WaitState
	c      *engine.Comm
	of     closable       // nil: nothing that closes
	theirs *atomic.Uint64 // the state of the peer's side, or nil while that is unknown
	sp     *Space
}

// until waits until ready returns true. Its caller has already called ready. It does housekeeping first, and again
// after every `looks` calls of ready.
func (w *waiting) until(looks int, ready func() bool) error {
	defer w.c.Team().EndWait(&w.WaitState)
	if f := w.sp.far(w.Peer, true); f != nil {
		return w.untilFar(f, ready)
	}
	w.Peer = w.sp.local(w.Peer)
	for {
		if err := w.poll(); err != nil {
			if ready() {
				return nil
			}
			return w.lost(err)
		}
		if within(looks, ready) {
			return nil
		}
	}
}

// untilFar is until for a peer on another host.
func (w *waiting) untilFar(f *far, ready func() bool) error {
	var step hosts.Wait
	w.Far, w.Peer = w.Peer+1, w.c.Team().Rank()
	for {
		err := w.polled(w.c.Team().Check(&w.WaitState), f.pair.Rank)
		if err == nil {
			err = f.lost()
		}
		if err != nil {
			if f.look(1, ready) {
				return nil
			}
			return w.lost(err)
		}
		w.sp.pairs.Idle(&step, f.pair, f.deferred.busy.Load())
		if f.look(looksFar, ready) {
			return nil
		}
	}
}

// glance is what until does once between calls of ready, but waits for nothing, has no time limit, and looks at all at once.
func (w *waiting) glance() error {
	t := w.c.Team()
	if f := w.sp.far(w.Peer, true); f != nil {
		w.Far, w.Peer = w.Peer+1, t.Rank()
		if err := w.polled(t.PollHealth(&w.WaitState), f.pair.Rank); err != nil {
			return err
		}
		return f.lost()
	}
	w.Peer = w.sp.local(w.Peer)
	err := t.PollHealth(&w.WaitState)
	if err == nil && t.Peers[w.Peer].Closed() {
		err = t.ClosedError(&w.WaitState, w.Peer)
	}
	return w.polled(err, t.Name(w.Peer))
}

// within reports whether ready returns true in one of so many calls.
func within(looks int, ready func() bool) bool {
	for range looks {
		if ready() {
			return true
		}
	}
	return false
}

// poll does the housekeeping, and also notices if the peer has closed its side. Its errors do not break the
// communicator: see lost. If a peer's communicator broke, that error takes precedence over the closed side.
func (w *waiting) poll() error {
	return w.polled(w.c.Team().Poll(&w.WaitState), w.c.Team().Name(w.Peer))
}

// polled is poll once the team has been polled, for a wait for a rank.
func (w *waiting) polled(err *fault.Error, rank int) error {
	switch {
	case err != nil:
		return err
	case w.of == nil:
		return nil
	}
	if err := w.of.Err(); err != nil {
		return err
	}
	if w.theirs != nil && w.theirs.Load() == team.StateClosed && (w.Far != 0 || w.c.Team().Peers[w.Peer].Lost() == 0) {
		return fmt.Errorf("rank %d has closed its side of %s: %w", rank, w.of.name(), fault.ErrClosed)
	}
	return nil
}

// closedDuringWait is the error of a wait on k when k or its communicator closes.
func closedDuringWait(k closable) error {
	return fmt.Errorf("%s was closed during the wait: %w", k.name(), fault.ErrClosed)
}

// lost returns the error of a wait that poll ended with err. The communicator breaks only if a peer is lost, a peer's
// communicator has broken, or the ranks disagree.
func (w *waiting) lost(err error) error {
	var e *fault.Error
	if errors.As(err, &e) && (w.Lost || errors.Is(err, fault.ErrPeerLost) || errors.Is(err, fault.ErrMismatch)) {
		return w.c.Fail(e)
	}
	return err
}

// waitSignal waits until word, the peer's count of signals, has reached next.
func waitSignal(ctx context.Context, sp *Space, of closable, theirs *atomic.Uint64, peer int, word *atomic.Uint64,
	next uint64) error {
	c := sp.c
	looks := c.Team().Looks()
	for i := 0; i < looks; i++ {
		if team.Reached(word.Load(), next) {
			return nil
		}
	}
	w := waiting{WaitState: team.WaitState{Op: "wait", Ctx: ctx, Peer: peer, Step: "signal"}, c: c, of: of, theirs: theirs, sp: sp}
	return w.until(looks, func() bool { return team.Reached(word.Load(), next) })
}
