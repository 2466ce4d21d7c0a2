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

// gpuEnd is one end, of a channel or of a window towards one rank, over memory of devices: kernels do its steps, and
// count its signals in the device areas. It keeps both memories where they are until it is closed, or the peer has
// taken its own back and nothing here can reach for it any more.
type gpuEnd struct {
	sp     *Space
	c      *engine.Comm
	d      *gpu.Device
	of     closable // the channel or the window
	op     string
	name   string
	rank   int         // of the peer, or for windows this one itself
	gone   func() bool // whether the peer has closed its side
	r      *engine.Registration
	claim  *register.Claim // of this rank's memory
	remote *Remote         // the peer's
	here   cuda.Addr
	there  cuda.Addr // the peer's memory, as mapped here
	bytes  [2]int    // here and there

	status *kernels.Status
	f      *cuda.Function

	launching sync.Mutex // which the driver may hold up while its queue is full
	held      bool       // the peer's memory stays mapped
	captured  bool       // somebody captured steps, and may replay them at any time
	params    kernels.ChannelParams
	own       [3]*gpu.Stream // of blocking calls, by side
	streams   map[*gpu.Stream]bool
	last      [3]*gpu.Stream // on which each side has queued
	events    [3]*cuda.Event // after what each side has queued; nil until there are two streams

	mu       sync.Mutex
	why      error // why waits were ended from here
	failed   error
	reported bool // by a Sync
	released bool
}

// open maps the peer's memory, and lets the watchdog see g. The two slots are those of the end here and there.
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

// fail has all waits of this end's kernels end, with why, unless they have been ended before.
func (g *gpuEnd) fail(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why == nil && !g.released {
		g.why = why
		g.status.Abort.Store(1)
	}
}

// watch is the watchdog's look.
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
		g.letGo() // its error is the peer's, which waits in vain
	}
}

// letGo gives the peer's memory up: no step that is queued, or will be, reaches for it. The caller has launching
// locked.
func (g *gpuEnd) letGo() error {
	if !g.held {
		return nil
	}
	g.held = false
	return g.c.DevicePeer(g.rank).Unhold(g.remote.at.Arena)
}

// told is the error that ended the channel, or nil: its kernels leave everything alone from then on.
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
		_, err = g.status.Broke(code, c.Options().Timeout, ", which ends "+g.name)
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		err = &fault.Error{Op: g.op, Rank: c.Rank(), Peer: g.rank, Host: c.Hostname(c.Rank()), Step: "wait",
			Device: g.d.Domain.Context.Device(), Err: err}
	}
	g.failed = err
	return err
}

// collect is the error that ended the channel, for the first Sync that asks.
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

// release gives up what the end has, once, when nothing of it runs any more: waits have been ended.
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
	g.launching.Lock() // and with it what the watchdog looks at
	errs := []error{g.letGo()}
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

// endUser is an end that queues on streams. Implements gpu.StreamUser.
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
