package gpuend

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// Config is what an end with signals of its own is opened with.
type Config struct {
	Signals
	Memory
}

// End is one end on devices, of a channel, of a semaphore, or of a window towards one rank: signals, which ends may
// share, and memory. It keeps both memories mapped until it is closed. It gives up the peer's memory earlier if the
// peer has taken that back and no step can use it any more.
type End struct {
	*signals
	memories
	shares bool // the signals are another end's

	// launching guards these.
	held     bool // the peer's memory stays mapped
	captured bool // a user's capture has steps, which it may replay at any time
	params   kernels.ChannelParams
	streams  map[*gpu.Stream]bool // where steps were queued
}

// Open opens an end. It maps the peer's memory, and makes the end known to the watchdog. The caller closes it.
func (t *Table) Open(ctx context.Context, k Config) (*End, error) {
	s, err := t.newSignals(k.Signals)
	if err != nil {
		return nil, err
	}
	return s.open(ctx, k.Memory, false)
}

// Share opens an end that shares e's signals. The caller closes it before e.
func (e *End) Share(ctx context.Context, m Memory) (*End, error) { return e.signals.open(ctx, m, true) }

// open opens an end.
func (s *signals) open(ctx context.Context, m Memory, shares bool) (*End, error) {
	e := &End{signals: s, memories: memories{Memory: m, peer: s.Rank}, shares: shares, params: s.params(), streams: map[*gpu.Stream]bool{}}
	e.params.SaltOut, e.params.SaltIn = e.SaltOut, e.SaltIn
	if e.Local != nil {
		if err := e.mapMemory(ctx); err != nil {
			return nil, err
		}
	}
	s.t.add(e)
	s.d.Watch()
	return e, nil
}

// mapMemory claims this rank's memory and maps the peer's.
func (e *End) mapMemory(ctx context.Context) (err error) {
	if err := e.acquire(); err != nil {
		return err
	}
	if e.remoteAddr = e.localAddr; e.Index != e.c.Team().Rank() {
		e.remoteAddr, err = e.c.DevicePeer(e.Index).Hold(ctx, e.Remote.At.Arena, e.Remote.At.Offset, e.Remote.Bytes)
		if err != nil {
			e.unclaim()
			return err
		}
		e.held = true
	}
	return nil
}

// Close ends all waits of the end's kernels, waits for all that it has queued, and releases it. An end that shares its
// signals does not end waits. No Launch is under way, and none follows. quick: if the communicator is broken, the end
// is released later, with the communicator.
func (e *End) Close(quick bool) error {
	e.EndWaits()
	return e.closeFailed(quick)
}

// EndWaits ends all waits for the signals, also those of ends that share them. It does nothing for an end that shares
// another one's signals.
func (e *End) EndWaits() {
	if !e.shares {
		e.fail(fmt.Errorf("%s: %w", e.Name, fault.ErrClosed))
	}
}

// closeFailed is Close after EndWaits.
func (e *End) closeFailed(quick bool) error {
	if quick && e.c.Broken() != nil {
		return nil
	}
	return e.release()
}

// watch is called at each tick of the watchdog.
func (e *End) watch() {
	if e.Index == e.c.Team().Rank() {
		return
	}
	if !e.shares && e.PeerClosed() && e.c.Team().Peers[e.Index].Lost() == 0 {
		e.fail(fmt.Errorf("rank %d has closed its side of %s: %w", e.Rank, e.Name, fault.ErrClosed))
	}
	if e.Local != nil && e.Remote.Live() != nil && e.launching.TryLock() {
		defer e.launching.Unlock()
		if !e.held || e.captured {
			return
		}
		for s := range e.streams {
			if done, _ := s.Done(); !done {
				return
			}
		}
		e.unholdMemory() // the peer has closed the registration, and its Close reports the error
	}
}

// unholdMemory gives up the peer's memory. No step, queued or later, may use it. The caller holds launching.
func (e *End) unholdMemory() error {
	if !e.held {
		return nil
	}
	e.held = false
	return e.c.DevicePeer(e.Index).Unhold(e.Remote.At.Arena)
}

// release releases the end's resources, once. It waits for all queued work, whose waits have been ended before.
func (e *End) release() error {
	if !e.t.remove(e) {
		return nil
	}
	for s := range e.streams { // nothing is launched any more
		s.Quiet()
	}
	var errs []error
	if !e.shares {
		errs = append(errs, e.signals.release())
	}
	e.launching.Lock() // guards against the watchdog
	errs = append(errs, e.unholdMemory())
	e.launching.Unlock()
	e.unclaim()
	return errors.Join(errs...)
}
