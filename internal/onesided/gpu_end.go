package onesided

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

// gpuEnd is one end over device memory, of a channel or of a window towards one rank. Kernels do its steps, and count
// its signals in the device areas. It keeps both memories mapped until it is closed. It gives up the peer's memory
// earlier if the peer has taken that back and no step can use it any more.
type gpuEnd struct {
	sp     *Space
	c      *engine.Comm
	d      *gpu.Device
	of     closable // the channel or the window
	op     string
	name   string
	rank   int         // the peer, or this rank itself in windows
	gone   func() bool // reports whether the peer has closed its side
	r      *engine.Registration
	claim  *register.Claim // claim on this rank's memory
	remote *Remote         // the peer's memory
	here   cuda.Addr
	there  cuda.Addr // the peer's memory, as mapped here
	bytes  [2]int    // sizes: here and there

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
	why      error // why this rank ended the waits
	failed   error
	reported bool // a Sync has returned failed
	released bool
}

// open maps the peer's memory, and makes g known to the watchdog. mine and theirs are the slots of the two ends.
func (g *gpuEnd) open(ctx context.Context, mine, theirs int, salt func(mine bool) uint64) (err error) {
	if err := g.sp.noDevice(); err != nil {
		return err
	}
	d, all := g.sp.gpu.d, g.sp.gpu
	if err := d.Atomics[g.rank]; err != nil {
		return err
	}
	g.d, g.streams = d, map[*gpu.Stream]bool{}
	if g.f, err = d.Domain.Kernels.Kernel(kernels.Channel, dtype.Invalid, g.c.Size()); err != nil {
		return err
	}
	if g.claim, err = g.r.Acquire(); err != nil {
		return err
	}
	g.here = cuda.Addr(g.claim.Addr())
	g.bytes = [2]int{g.claim.Len(), g.remote.bytes}
	if g.there = g.here; g.rank != g.c.Rank() {
		g.there, err = g.c.DevicePeer(g.rank).Hold(ctx, g.remote.at.Arena, g.remote.at.Offset, g.remote.bytes)
		if err != nil {
			g.claim.Release()
			return err
		}
		g.held = true
	}
	g.status = all.status(mine)
	g.params = kernels.ChannelParams{
		Mine:   d.Params.Area[0] + uint64(d.Layout.Channel(mine)),
		Theirs: d.Areas[d.Distance(g.rank)] + uint64(d.Layout.Channel(theirs)),
		Status: d.StatusAddr(all.first + mine), Peer: uint32(g.rank),
		SaltOut: uint32(salt(true)), SaltIn: uint32(salt(false))}
	all.add(g)
	d.Watch()
	return nil
}

// fail ends all waits of this end's kernels with the error why. Only the first call counts.
func (g *gpuEnd) fail(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why == nil && !g.released {
		g.why = why
		g.status.Abort.Store(1)
	}
}

// watch is called at each tick of the watchdog.
func (g *gpuEnd) watch() {
	if g.rank == g.c.Rank() {
		return
	}
	if g.gone() && g.c.Team().Peers[g.rank].Lost() == 0 {
		g.fail(fmt.Errorf("rank %d has closed its side of %s: %w", g.rank, g.name, fault.ErrClosed))
	}
	if g.remote.live() != nil && g.launching.TryLock() {
		defer g.launching.Unlock()
		if !g.held || g.captured {
			return
		}
		for s := range g.streams {
			if done, _ := s.Done(); !done {
				return
			}
		}
		g.unholdMemory() // the peer has closed the registration, and its Close reports the error
	}
}

// unholdMemory gives up the peer's memory. No step, queued or later, may use it. The caller holds launching.
func (g *gpuEnd) unholdMemory() error {
	if !g.held {
		return nil
	}
	g.held = false
	return g.c.DevicePeer(g.rank).Unhold(g.remote.at.Arena)
}

// told returns the error that ended the channel, or nil. After such an error its kernels do nothing.
func (g *gpuEnd) told() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.look()
}

func (g *gpuEnd) look() error {
	if g.failed != nil || g.released {
		return g.failed
	}
	c := g.c
	var err error
	switch code := g.status.Error.Load(); code {
	case kernels.OK:
		return nil
	case kernels.Aborted:
		if b := c.Broken(); b != nil {
			err = b
		} else if err = g.why; err == nil {
			err = fault.ErrAborted
		}
	default:
		_, err = g.status.Broke(code, g.rank, c.Options().Timeout, ", which ends "+g.name)
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		err = &fault.Error{Op: g.op, Rank: c.Rank(), Peer: g.rank, Host: c.Hostname(c.Rank()), Step: "wait",
			Device: g.d.Domain.Context.Device(), Err: err}
	}
	g.failed = err
	return err
}

// collect returns the error that ended the channel to the first Sync that asks.
func (g *gpuEnd) collect() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.look()
	if err == nil || g.reported {
		return nil
	}
	g.reported = true
	return err
}

// release releases the end's resources, once. It waits for all queued work; its waits have been ended before.
func (g *gpuEnd) release() error {
	if !g.sp.gpu.remove(g) {
		return nil
	}
	for s := range g.streams { // nothing is launched any more
		s.Quiet()
	}
	for s := range g.streams {
		s.Leave(endUser{g})
	}
	g.mu.Lock()
	g.look()
	g.released = true
	g.mu.Unlock()
	g.launching.Lock() // guards against the watchdog
	errs := []error{g.unholdMemory()}
	g.launching.Unlock()
	for _, s := range g.own {
		if s != nil {
			g.d.Domain.Remove(s)
			errs = append(errs, s.End())
		}
	}
	for _, e := range g.events {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	g.claim.Release()
	return errors.Join(errs...)
}

// endUser is a gpuEnd that queues on streams. It implements gpu.StreamUser.
type endUser struct{ g *gpuEnd }

func (u endUser) Comm() *engine.Comm { return nil }

func (u endUser) Collect() []error {
	if err := u.g.collect(); err != nil {
		return []error{err}
	}
	return nil
}

func (u endUser) FailDevice(op string, err error) { u.g.d.FailDevice(op, err) }
func (u endUser) Closed(s *gpu.Stream)            { u.g.d.Domain.Remove(s) }
