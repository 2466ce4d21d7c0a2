package onesided

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// waiting is a wait of a channel or window, of, for something of a peer. If it has not broken the communicator, its
// error is of this call alone.
type waiting struct {
	team.WaitState
	c      *engine.Comm
	of     closable
	theirs *atomic.Uint64 // the state of the peer's side, or nil while that is not known
}

// until waits until ready says so, at which its caller has looked already: so many times between two rounds of
// housekeeping, of which the first comes at once.
func (w *waiting) until(looks int, ready func() bool) error {
	defer w.c.Team().EndWait(&w.WaitState)
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

// within reports whether ready says so within so many looks.
func within(looks int, ready func() bool) bool {
	for range looks {
		if ready() {
			return true
		}
	}
	return false
}

// poll is the housekeeping, of which the peer may have closed its part. Its error has not broken the communicator yet:
// see lost. What broke a peer's communicator comes before what that has closed.
func (w *waiting) poll() error {
	if err := w.c.Team().Poll(&w.WaitState); err != nil {
		return err
	}
	if err := closedMeanwhile(w.c, w.of); err != nil {
		return err
	}
	if w.theirs != nil && w.theirs.Load() == team.StateClosed && w.c.Team().Peers[w.Peer].Lost() == 0 {
		return fmt.Errorf("rank %d has closed its side of %s: %w", w.Peer, w.of.name(), fault.ErrClosed)
	}
	return nil
}

// closedMeanwhile is why a wait of k is over from here, or nil.
func closedMeanwhile(c *engine.Comm, k closable) error {
	if k.use().Closed() || c.Closing() {
		return fmt.Errorf("%s was closed during the wait: %w", k.name(), fault.ErrClosed)
	}
	return nil
}

// lost is err, of poll, when what was waited for has not come after all: only the loss of a peer, and what broke the
// communicator on one, is its end here.
func (w *waiting) lost(err error) error {
	var e *fault.Error
	if errors.As(err, &e) && (w.Lost || errors.Is(err, fault.ErrPeerLost) || errors.Is(err, fault.ErrMismatch)) {
		return w.c.Fail(e)
	}
	return err
}

// waitSignal waits until the peer's signals, in word, are next at least.
func waitSignal(ctx context.Context, c *engine.Comm, of closable, theirs *atomic.Uint64, peer int, word *atomic.Uint64,
	next uint64) error {
	looks := c.Team().Looks()
	for i := 0; i < looks; i++ {
		if team.Reached(word.Load(), next) {
			return nil
		}
	}
	w := waiting{team.WaitState{Op: "wait", Ctx: ctx, Peer: peer, Step: "signal"}, c, of, theirs}
	return w.until(looks, func() bool { return team.Reached(word.Load(), next) })
}
