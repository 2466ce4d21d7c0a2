package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/register"
)

// gpuLink is one end, of a channel or of a window towards one rank, over memory of devices: kernels do its steps, and
// count its signals in the device areas. It keeps both memories where they are until it is closed, or the peer has
// taken its own back and nothing here can reach for it any more.
type gpuLink struct {
	c      *Comm
	d      *device
	of     noun // the channel or the window
	op     string
	name   string
	rank   int         // of the peer, or for windows this one itself
	gone   func() bool // whether the peer has closed its side
	r      *Registration
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
	own       [3]*gpuStream // of blocking calls, by side
	streams   map[*gpuStream]bool
	last      [3]*gpuStream  // on which each side has queued
	events    [3]*cuda.Event // after what each side has queued; nil until there are two streams

	mu       sync.Mutex
	why      error // why waits were ended from here
	failed   error
	reported bool // by a Sync
	released bool
}

// clearEnd zeroes an end of a channel in the device area, which nobody uses.
func (d *device) clearEnd(slot int) error {
	var zero [kernels.ChannelBytes]byte
	d.c.nouns.gpu.status(slot).Abort.Store(0)
	d.c.nouns.gpu.status(slot).Error.Store(kernels.OK)
	return d.gpu.copy(cuda.Addr(d.area.Base())+cuda.Addr(kernels.ChannelAt(slot)), zero[:], true)
}

// openGPU makes the device's side of l if what it is made of is on devices, as it must be on both sides or on none.
func (l *Link) openGPU(ctx context.Context, r *Registration, remote *Remote, peers bool, theirs *linkSlot) (*gpuLink,
	error) {
	claim, err := r.Acquire()
	if err != nil {
		return nil, err
	}
	mine := !claim.Memory().Device.IsHost()
	claim.Release()
	switch {
	case !mine && !peers && !remote.gpu:
		return nil, nil
	case mine != peers || mine != remote.gpu:
		return nil, fmt.Errorf("a channel between memory of a device and of the host: %w", fault.ErrArgument)
	}
	g := &gpuLink{c: l.c, of: l, op: "channel", name: l.name(), rank: l.peer, r: r, remote: remote,
		gone: func() bool { return theirs.key.Load() == l.otherKey() && theirs.state.Load() == team.StateClosed }}
	if err := g.open(ctx, l.slot, l.otherSlot(theirs), l.Salt); err != nil {
		return nil, err
	}
	return g, nil
}

// open maps the peer's memory, and lets the watchdog see g. The two slots are those of the end here and there.
func (g *gpuLink) open(ctx context.Context, mine, theirs int, salt func(mine bool) uint64) (err error) {
	d := g.c.device
	if d == nil {
		return g.c.gpuWhyNot()
	}
	if err := g.c.atomics[g.rank]; err != nil {
		return err
	}
	g.d, g.streams = d, map[*gpuStream]bool{}
	if g.f, err = d.gpu.set.Kernel(kernels.Channel, dtype.Invalid, g.c.size); err != nil {
		return err
	}
	if g.claim, err = g.r.Acquire(); err != nil {
		return err
	}
	g.here = cuda.Addr(g.claim.Addr())
	g.bytes = [2]int{g.claim.Len(), g.remote.bytes}
	if g.there = g.here; g.rank != g.c.rank {
		g.there, err = g.c.devicePeer(g.rank).Hold(ctx, g.remote.at.Arena, g.remote.at.Offset, g.remote.bytes)
		if err != nil {
			g.claim.Release()
			return err
		}
		g.held = true
	}
	g.status = d.c.nouns.gpu.status(mine)
	g.params = kernels.ChannelParams{
		Mine:    d.params.Area[0] + uint64(kernels.ChannelAt(mine)),
		Theirs:  d.params.Area[d.distance(g.rank)] + uint64(kernels.ChannelAt(theirs)),
		Status:  d.lineAddr(d.c.nouns.gpu.first + mine),
		Timeout: uint64(g.c.opts.Timeout), Peer: uint32(g.rank),
		SaltOut: uint32(salt(true)), SaltIn: uint32(salt(false))}
	d.mu.Lock()
	d.c.nouns.gpu.ends[g] = true
	if g.c.broken.Load() != nil { // abort has not seen it
		g.status.Abort.Store(1)
	}
	d.mu.Unlock()
	d.watch()
	return nil
}

// otherSlot is the number of the other end.
func (l *Link) otherSlot(theirs *linkSlot) int {
	p := &l.c.team.Peers[l.peer]
	table, err := p.Mem.Resolve(l.c.nouns.places[l.peer].At.Location(), tableBytes(l.c.size))
	if err != nil { // theirs lies in it
		return 0
	}
	return int((uintptr(unsafe.Pointer(theirs)) - uintptr(table)) / unsafe.Sizeof(linkSlot{}))
}

// fail has all waits of this end's kernels end, with why, unless they have been ended before.
func (g *gpuLink) fail(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why == nil && !g.released {
		g.why = why
		g.status.Abort.Store(1)
	}
}

// watch is the watchdog's look.
func (g *gpuLink) watch() {
	if g.rank == g.c.rank {
		return
	}
	if g.gone() && g.c.team.Peers[g.rank].Lost() == 0 {
		g.fail(fmt.Errorf("rank %d has closed its side of %s: %w", g.rank, g.name, fault.ErrClosed))
	}
	if g.remote.live() != nil && g.launching.TryLock() {
		defer g.launching.Unlock()
		if !g.held || g.captured {
			return
		}
		for s := range g.streams {
			if done, _ := s.done(); !done {
				return
			}
		}
		g.letGo() // its error is the peer's, which waits in vain
	}
}

// letGo gives the peer's memory up: no step that is queued, or will be, reaches for it. The caller has launching
// locked.
func (g *gpuLink) letGo() error {
	if !g.held {
		return nil
	}
	g.held = false
	return g.c.devicePeer(g.rank).Unhold(g.remote.at.Arena)
}

// told is the error that ended the channel, or nil: its kernels leave everything alone from then on.
func (g *gpuLink) told() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.look()
}

func (g *gpuLink) look() error {
	if g.failed != nil || g.released {
		return g.failed
	}
	c := g.c
	var err error
	switch code := g.status.Error.Load(); code {
	case kernels.OK:
		return nil
	case kernels.Timeout:
		err = fmt.Errorf("nothing from it for %v, which ends %s: %w", c.opts.Timeout, g.name, fault.ErrTimeout)
	case kernels.Aborted:
		if b := c.broken.Load(); b != nil {
			err = b
		} else if err = g.why; err == nil {
			err = fault.ErrAborted
		}
	default:
		err = fmt.Errorf("status %d of a kernel is unknown: %w", code, fault.ErrAborted)
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		err = &fault.Error{Op: g.op, Rank: c.rank, Peer: g.rank, Host: c.team.Peers[c.rank].Host, Step: "wait",
			Device: g.d.gpu.ctx.Device(), Err: err}
	}
	g.failed = err
	return err
}

// collect is the error that ended the channel, for the first Sync that asks.
func (g *gpuLink) collect() error {
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
func (g *gpuLink) release() error {
	g.d.mu.Lock()
	ends := g.c.nouns.gpu.ends
	mine := ends[g]
	delete(ends, g)
	g.d.mu.Unlock()
	if !mine {
		return nil
	}
	for s := range g.streams { // nothing is launched any more
		s.quiet()
	}
	for s := range g.streams {
		s.leave(endUser{g})
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
			g.d.gpu.remove(s)
			errs = append(errs, s.cu.Close())
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

// endUser is an end that queues on streams. Implements streamUser.
type endUser struct{ g *gpuLink }

func (u endUser) comm() *Comm { return nil }

func (u endUser) collect() []error {
	if err := u.g.collect(); err != nil {
		return []error{err}
	}
	return nil
}

func (u endUser) broke(op string, err error) { u.g.d.failedOn(op, err) }
func (u endUser) closed(s *gpuStream)        { u.g.d.gpu.remove(s) }

// gpuEnds are the ends of a communicator on its device. Implements client.
type gpuEnds struct {
	d     *device
	first int               // status line
	ends  map[*gpuLink]bool // under d.mu
}

// onDevice implements clientMaker.
func (p *nounPart) onDevice(d *device) client {
	p.c.nouns.gpu = &gpuEnds{d: d, ends: map[*gpuLink]bool{}}
	return p.c.nouns.gpu
}

func (es *gpuEnds) lines() int          { return maxLinks }
func (es *gpuEnds) begin(first int)     { es.first = first }
func (es *gpuEnds) stuck() int          { return -1 }
func (es *gpuEnds) fatal() *fault.Error { return nil }
func (es *gpuEnds) collect() error      { return nil }

// status is that of the end in a slot.
func (es *gpuEnds) status(slot int) *kernels.Status { return es.d.line(es.first + slot) }

func (es *gpuEnds) abort() {
	for g := range es.ends {
		g.status.Abort.Store(1)
	}
}

func (es *gpuEnds) all() (all []*gpuLink) {
	es.d.mu.Lock()
	defer es.d.mu.Unlock()
	for g := range es.ends {
		all = append(all, g)
	}
	return all
}

func (es *gpuEnds) setTimeout(t uint64) {
	for _, g := range es.all() {
		g.params.Timeout = t
	}
}

func (es *gpuEnds) watch() {
	for _, g := range es.all() {
		g.watch()
	}
}

func (es *gpuEnds) close() error {
	var errs []error
	for _, g := range es.all() {
		errs = append(errs, g.release())
	}
	return errors.Join(errs...)
}
