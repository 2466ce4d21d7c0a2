package gpuend

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/register"
)

// Owner is the channel or the window that an end belongs to.
type Owner interface {
	// Err returns why this rank's waits on the owner must end, or nil: the owner or its communicator is closed.
	Err() error
}

// Config is what an end is opened with.
type Config struct {
	Owner          Owner
	Op             string // in errors of its kernels
	Name           string // in errors
	Rank           int    // the peer, or this rank itself in windows
	Slot, PeerSlot int    // of this end and of the peer's; this one is clear
	Local          *engine.Registration
	Remote         *engine.Import // the peer's memory
	PeerClosed     func() bool    // reports whether the peer has closed its side
	// What sets the packets to the peer, and those from it, apart from other channels' packets.
	SaltOut, SaltIn uint32
}

// End is one end over device memory, of a channel or of a window towards one rank. It keeps both memories mapped until
// it is closed. It gives up the peer's memory earlier if the peer has taken that back and no step can use it any more.
type End struct {
	Config
	t          *Table
	c          *engine.Comm
	d          *gpu.Device
	claim      *register.Claim // claim on this rank's memory
	localAddr  cuda.Addr
	remoteAddr cuda.Addr // as mapped by this rank
	bytes      [2]int    // sizes: of this rank's memory, and of the peer's

	status *kernels.Status
	f      *cuda.Function

	launching sync.Mutex // guards the fields below; launches may block with it while the driver's queue is full
	held      bool       // the peer's memory stays mapped
	captured  bool       // a user's capture has steps, which it may replay at any time
	params    kernels.ChannelParams
	own       [3]*gpu.Stream // streams for blocking calls, by side
	streams   map[*gpu.Stream]bool
	last      [3]*gpu.Stream // the stream on which each side queued last
	events    [3]*cuda.Event // after each side's queued work; nil until that uses two streams

	mu       sync.Mutex
	cause    error // why this rank ended the waits
	failed   error
	reported bool // a Sync has returned failed
	released bool
}

// Open opens an end. It maps the peer's memory, and makes the end known to the watchdog. The caller closes it.
func (t *Table) Open(ctx context.Context, k Config) (*End, error) {
	c, d := t.c, t.d
	e := &End{Config: k, t: t, c: c, d: d}
	if err := d.Atomics[e.Rank]; err != nil {
		return nil, err
	}
	e.streams = map[*gpu.Stream]bool{}
	var err error
	if e.f, err = d.Domain.Kernels.Kernel(kernels.Channel, dtype.Invalid, c.Size()); err != nil {
		return nil, err
	}
	if e.claim, err = e.Local.Acquire(); err != nil {
		return nil, err
	}
	e.localAddr = cuda.Addr(e.claim.Addr())
	e.bytes = [2]int{e.claim.Len(), e.Remote.Bytes}
	if e.remoteAddr = e.localAddr; e.Rank != c.Rank() {
		e.remoteAddr, err = c.DevicePeer(e.Rank).Hold(ctx, e.Remote.At.Arena, e.Remote.At.Offset, e.Remote.Bytes)
		if err != nil {
			e.claim.Release()
			return nil, err
		}
		e.held = true
	}
	e.status = t.status(e.Slot)
	e.params = kernels.ChannelParams{
		Mine:   d.Params.Area[0] + uint64(d.Layout.Channel(e.Slot)),
		Theirs: d.Areas[d.Distance(e.Rank)] + uint64(d.Layout.Channel(e.PeerSlot)),
		Status: d.StatusAddr(t.first + e.Slot), Peer: uint32(e.Rank),
		SaltOut: e.SaltOut, SaltIn: e.SaltIn}
	t.add(e)
	d.Watch()
	return e, nil
}

// Close ends all waits of the end's kernels, waits for all that it has queued, and releases it. No Launch is under way,
// and none follows. quick: if the communicator is broken, the end is released later, with the communicator.
func (e *End) Close(quick bool) error {
	e.fail(fmt.Errorf("%s: %w", e.Name, fault.ErrClosed))
	return e.closeFailed(quick)
}

// closeFailed is Close after fail.
func (e *End) closeFailed(quick bool) error {
	if quick && e.c.Broken() != nil {
		return nil
	}
	return e.release()
}

// fail ends all waits of this end's kernels with the error why. Only the first call counts.
func (e *End) fail(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil && !e.released {
		e.cause = why
		e.status.Abort.Store(1)
	}
}

// watch is called at each tick of the watchdog.
func (e *End) watch() {
	if e.Rank == e.c.Rank() {
		return
	}
	if e.PeerClosed() && e.c.Team().Peers[e.Rank].Lost() == 0 {
		e.fail(fmt.Errorf("rank %d has closed its side of %s: %w", e.Rank, e.Name, fault.ErrClosed))
	}
	if e.Remote.Live() != nil && e.launching.TryLock() {
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
	return e.c.DevicePeer(e.Rank).Unhold(e.Remote.At.Arena)
}

// err returns the error that ended this end, or nil. After such an error its kernels do nothing.
func (e *End) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.readStatus()
}

// readStatus is err for a caller that holds mu.
func (e *End) readStatus() error {
	if e.failed != nil || e.released {
		return e.failed
	}
	c := e.c
	var err error
	switch code := e.status.Error.Load(); code {
	case kernels.OK:
		return nil
	case kernels.Aborted:
		if b := c.Broken(); b != nil {
			err = b
		} else if err = e.cause; err == nil {
			err = fault.ErrAborted
		}
	default:
		_, err = e.status.Broke(code, e.Rank, c.Options().Timeout, ", which ends "+e.Name)
	}
	var typed *fault.Error
	if !errors.As(err, &typed) {
		err = &fault.Error{Op: e.Op, Rank: c.Rank(), Peer: e.Rank, Host: c.Hostname(c.Rank()), Step: "wait",
			Device: e.d.Domain.Context.Device(), Err: err}
	}
	e.failed = err
	return err
}

// collect returns the error that ended this end to the first Sync that asks.
func (e *End) collect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.readStatus()
	if err == nil || e.reported {
		return nil
	}
	e.reported = true
	return err
}

// release releases the end's resources, once. It waits for all queued work, whose waits have been ended before.
func (e *End) release() error {
	if !e.t.remove(e) {
		return nil
	}
	for s := range e.streams { // nothing is launched any more
		s.Quiet()
	}
	for s := range e.streams {
		s.Leave(streamUser{e})
	}
	e.mu.Lock()
	e.readStatus()
	e.released = true
	e.mu.Unlock()
	e.launching.Lock() // guards against the watchdog
	errs := []error{e.unholdMemory()}
	e.launching.Unlock()
	for _, s := range e.own {
		if s != nil {
			e.d.Domain.Remove(s)
			errs = append(errs, s.End())
		}
	}
	for _, ev := range e.events {
		if ev != nil {
			errs = append(errs, ev.Close())
		}
	}
	e.claim.Release()
	return errors.Join(errs...)
}

// streamUser is an End that queues on streams. It implements gpu.StreamUser.
type streamUser struct{ e *End }

func (u streamUser) Comm() *engine.Comm { return nil }

func (u streamUser) Collect() []error {
	if err := u.e.collect(); err != nil {
		return []error{err}
	}
	return nil
}

func (u streamUser) FailDevice(op string, err error) { u.e.d.FailDevice(op, err) }
func (u streamUser) Closed(s *gpu.Stream)            { u.e.d.Domain.Remove(s) }
