package gpuend

import (
	"errors"
	"sync"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// Owner is the channel, the semaphore or the window that signals belong to.
type Owner interface {
	// Err returns why this rank's waits on the owner must end, or nil: the owner or its communicator is closed.
	Err() error
}

// Signals is what signals are opened with.
type Signals struct {
	Owner          Owner
	Op             string      // in errors of its kernels
	Name           string      // in errors
	Rank           int         // the peer, or this rank itself in windows
	Index          int         // its rank in the team
	Slot, PeerSlot int         // of this end and of the peer's; this one is clear
	PeerClosed     func() bool // reports whether the peer has closed its side
}

// signals are counted signals each way, and the order of the kernels that use them. Several ends may share them.
type signals struct {
	Signals
	t      *Table
	c      *engine.Comm
	d      *gpu.Device
	status *kernels.Status
	f      *cuda.Function

	launching sync.Mutex           // guards the fields below; launches may block with it while the driver's queue is full
	own       [3]*gpu.Stream       // streams for blocking calls, by side
	entered   map[*gpu.Stream]bool // streams that tell of these signals' errors
	last      [3]*gpu.Stream       // the stream on which each side queued last
	events    [3]*cuda.Event       // after each side's queued work; nil until that uses two streams

	mu       sync.Mutex
	cause    error // why this rank ended the waits
	failed   error
	reported bool // a Sync has returned failed
	released bool
}

func (t *Table) newSignals(k Signals) (*signals, error) {
	c, d := t.c, t.d
	s := &signals{Signals: k, t: t, c: c, d: d, status: t.status(k.Slot), entered: map[*gpu.Stream]bool{}}
	if err := d.Atomics[k.Index]; err != nil {
		return nil, err
	}
	var err error
	s.f, err = d.Domain.Kernels.Kernel(kernels.Channel, dtype.Invalid, c.Team().Size())
	return s, err
}

// params returns the parameters of kernels that use the signals.
func (s *signals) params() kernels.ChannelParams {
	return kernels.ChannelParams{
		Mine:   s.d.Params.Area[0] + uint64(s.d.Layout.Channel(s.Slot)),
		Theirs: s.d.Areas[s.d.Distance(s.Index)] + uint64(s.d.Layout.Channel(s.PeerSlot)),
		Status: s.d.StatusAddr(s.t.first + s.Slot), Peer: uint32(s.Rank)}
}

// fail ends all waits for these signals with the error why. Only the first call counts.
func (e *signals) fail(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil && !e.released {
		e.cause = why
		e.status.Abort.Store(1)
	}
}

// enter makes syncs of a stream return these signals' error. The caller holds launching.
func (e *signals) enter(on *gpu.Stream) {
	if !e.entered[on] {
		e.entered[on] = true
		on.Enter(streamUser{e}, e.d.Domain)
	}
}

// err returns the error that ended these signals, or nil. After such an error their kernels do nothing.
func (e *signals) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.readStatus()
}

// readStatus is err for a caller that holds mu.
func (e *signals) readStatus() error {
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

// collect returns the error that ended these signals to the first Sync that asks.
func (e *signals) collect() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.readStatus()
	if err == nil || e.reported {
		return nil
	}
	e.reported = true
	return err
}

// release releases the signals, whose waits have been ended, when all queued work is done. It is called once.
func (e *signals) release() error {
	for s := range e.entered {
		s.Leave(streamUser{e})
	}
	e.mu.Lock()
	e.readStatus()
	e.released = true
	e.mu.Unlock()
	var errs []error
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
	return errors.Join(errs...)
}

// streamUser is signals whose kernels are on streams. It implements gpu.StreamUser.
type streamUser struct{ e *signals }

func (u streamUser) Comm() *engine.Comm { return nil }

func (u streamUser) Collect() []error {
	if err := u.e.collect(); err != nil {
		return []error{err}
	}
	return nil
}

func (u streamUser) FailDevice(op string, err error) { u.e.d.FailDevice(op, err) }
func (u streamUser) Closed(s *gpu.Stream)            { u.e.d.Domain.Remove(s) }
