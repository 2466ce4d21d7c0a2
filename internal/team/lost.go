package team

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/reason"
)

// Codes of Area.Lost.
const (
	lostPeer = iota + 1
	lostTimeout
	lostCancelled
	lostAborted
	lostInternal
	lostMismatch
)

// lostCode returns why the communicator broke, and the communicator's rank that this is about.
func (t *Team) lostCode(e *fault.Error) (code uint64, about int) {
	code = lostInternal
	switch {
	case errors.Is(e, fault.ErrPeerLost):
		code = lostPeer
	case errors.Is(e, fault.ErrTimeout):
		code = lostTimeout
	case errors.Is(e, context.Canceled), errors.Is(e, context.DeadlineExceeded):
		code = lostCancelled
	case errors.Is(e, fault.ErrAborted):
		code = lostAborted
	case errors.Is(e, fault.ErrMismatch):
		code = lostMismatch
	}
	if about = e.Peer; about < 0 {
		about = t.Name(t.rank)
		if code == lostPeer || code == lostTimeout { // no rank to name, and this rank itself is not lost
			code = lostInternal
		}
	}
	return code, about
}

// PublishLost publishes in this rank's area that the communicator broke, and why. e may be about any rank of the
// communicator. The first call counts: peers may read its text from then on.
func (t *Team) PublishLost(e *fault.Error) {
	t.publishing.Lock()
	defer t.publishing.Unlock()
	if t.Me.Lost.Load() != 0 {
		return
	}
	code, about := t.lostCode(e)
	t.Me.lostText.Set(reason.Text(e.Err, t.Name(t.rank)))
	t.Me.Lost.Store(code<<32 | uint64(about+1))
}

// LostElsewhere returns what to tell ranks of other hosts about why the communicator broke: a text, the rank that it is
// about, and a sentinel.
func (t *Team) LostElsewhere(e *fault.Error) (text string, about int, is error) {
	code, about := t.lostCode(e)
	me, did := t.Name(t.rank), "failed"
	text = reason.Text(e.Err, me)
	switch code {
	case lostPeer:
		return text, about, fault.ErrPeerLost
	case lostTimeout:
		return text, about, fault.ErrTimeout
	case lostAborted:
		return text, about, fault.ErrAborted
	case lostMismatch:
		return text, about, fault.ErrMismatch
	case lostCancelled:
		did = "gave up"
	}
	return fmt.Sprintf("rank %d %s: %s: %v", me, did, text, fault.ErrAborted), me, fault.ErrAborted
}

// LostError turns what a peer of the team has published into this rank's error.
func (t *Team) LostError(s *WaitState, peer int, v uint64) *fault.Error {
	s.Lost = true
	me, from, about := t.Name(t.rank), t.Name(peer), int(uint32(v))-1
	text := t.Peers[peer].Area.lostText.Get()
	if about < 0 || about >= t.all {
		return t.errorAt(s, from, fmt.Errorf("control area is damaged (%#x): %w", v, fault.ErrPeerLost))
	}
	switch v >> 32 {
	case lostPeer:
		return t.errorAt(s, about, reason.Remote(text, fault.ErrPeerLost))
	case lostTimeout:
		if about == me && !s.PassOn {
			about, text = from, fmt.Sprintf("rank %d waited for this rank: %s", from, text)
		}
		return t.errorAt(s, about, reason.Remote(text, fault.ErrTimeout))
	case lostCancelled:
		return t.errorAt(s, from, fmt.Errorf("rank %d gave up: %s: %w", from, text, fault.ErrAborted))
	case lostMismatch:
		if about == me && !s.PassOn {
			about = from
		}
		return t.errorAt(s, about, reason.Remote(text, fault.ErrMismatch))
	case lostAborted:
		return t.errorAt(s, about, reason.Remote(text, fault.ErrAborted))
	}
	return t.errorAt(s, from, fmt.Errorf("rank %d failed: %s: %w", from, text, fault.ErrAborted))
}

// Reader is a peer's side of something shared: the word that says whether the peer has closed it. The word lies in
// memory that the peer may have given back.
type Reader struct {
	State *atomic.Uint64
	Mem   PeerMemory
	At    mem.Location // location of that memory

	Key *atomic.Uint64 // if Key is set and no longer holds Was, the word belongs to something else
	Was uint64
}

// Done reports whether the peer has closed it, or is dead.
func (r *Reader) Done() bool {
	return !r.Mem.Live(r.At) || r.State.Load() == StateClosed || r.Key != nil && r.Key.Load() != r.Was || r.Mem.Dead()
}

// Readers returns the other ranks, as far as they are known.
func (t *Team) Readers() (all []Reader) {
	for i := range t.Peers {
		if p := &t.Peers[i]; i != t.rank && p.Area != nil {
			all = append(all, Reader{State: &p.Area.State, Mem: p.Mem, At: p.At})
		}
	}
	return all
}

// PublishIdle publishes that this rank's kernels in the communicator have ended for good.
func (t *Team) PublishIdle() { t.Me.idle.Store(1) }

// Lagging reports whether kernels of a peer that lives may still run.
func (t *Team) Lagging() bool {
	for r := range t.Peers {
		if p := &t.Peers[r]; r != t.rank && p.Area != nil && p.Mem.Live(p.At) && p.Area.idle.Load() == 0 && !p.Mem.Dead() {
			return true
		}
	}
	return false
}

// ClosedPeer returns the team's rank of a peer that has closed its communicator, or -1.
func (t *Team) ClosedPeer() int {
	for r := range t.Peers {
		if r != t.rank && t.Peers[r].Closed() {
			return r
		}
	}
	return -1
}

// ClosedError returns the error about a peer that has closed its communicator.
func (t *Team) ClosedError(w *WaitState, r int) *fault.Error {
	return t.errorAt(w, t.Name(r), fmt.Errorf("rank %d closed its communicator: %w", t.Name(r), fault.ErrPeerLost))
}
