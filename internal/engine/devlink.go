package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/cuda/kernels"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/register"
)

// gpuLink is the part of a Link over memory of devices: kernels do its steps, and count its signals in the device areas.
// It keeps both memories where they are until it is closed.
type gpuLink struct {
	l      *Link
	d      *device
	r      *Registration
	claim  *register.Claim // of this rank's memory
	peer   Peer
	extent uint32 // of the peer's memory
	here   cuda.Addr
	there  cuda.Addr // the peer's memory, as mapped here
	bytes  [2]int    // here and there

	status *kernels.Status
	f      *cuda.Function

	launching sync.Mutex // which the driver may hold up while its queue is full
	params    kernels.ChannelParams
	own       [3]*Stream // of blocking calls, by side
	streams   map[*Stream]bool
	last      [3]*Stream     // on which each side has queued
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
	d.linkStatus(slot).Abort.Store(0)
	d.linkStatus(slot).Error.Store(kernels.OK)
	return d.gpu.copy(cuda.Addr(d.area.Base())+cuda.Addr(kernels.ChannelAt(slot)), zero[:], true)
}

func (d *device) linkStatus(slot int) *kernels.Status {
	return (*kernels.Status)(unsafe.Add(unsafe.Pointer(d.status), statusLine*(1+slot)))
}

func (d *device) allLinks() (all []*gpuLink) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for g := range d.links {
		all = append(all, g)
	}
	return all
}

// openGPU makes the device's side of l if what it is made of is on devices, as it must be on both sides or on none.
func (l *Link) openGPU(ctx context.Context, r *Registration, remote *Remote, peers bool, theirs *linkSlot) (*gpuLink,
	error) {
	claim, err := r.Acquire()
	if err != nil {
		return nil, err
	}
	mine := !claim.Memory().Device.IsHost()
	if !mine && !peers && !remote.gpu {
		claim.Release()
		return nil, nil
	}
	d := l.c.device
	g := &gpuLink{l: l, d: d, r: r, claim: claim, peer: remote.mem, here: cuda.Addr(claim.Addr()),
		bytes: [2]int{claim.Len(), remote.bytes}, streams: map[*Stream]bool{}}
	switch {
	case mine != peers || mine != remote.gpu:
		err = fmt.Errorf("a channel between memory of a device and of the host: %w", fault.ErrArgument)
	case d == nil:
		err = l.c.gpuWhyNot()
	default:
		g.f, err = d.gpu.set.Kernel(kernels.Channel, dtype.Invalid, l.c.size)
	}
	if err == nil {
		g.there, err = remote.mem.Hold(ctx, remote.at.Arena, remote.at.Offset, remote.bytes)
	}
	if err != nil {
		claim.Release()
		return nil, err
	}
	g.extent = remote.at.Arena
	g.status = d.linkStatus(l.slot)
	g.params = kernels.ChannelParams{
		Mine:    d.params.Area[0] + uint64(kernels.ChannelAt(l.slot)),
		Theirs:  d.params.Area[d.distance(l.peer)] + uint64(kernels.ChannelAt(l.otherSlot(theirs))),
		Status:  d.params.Status + uint64(statusLine*(1+l.slot)),
		Timeout: uint64(l.c.opts.Timeout), Peer: uint32(l.peer),
		SaltOut: uint32(l.Salt(true)), SaltIn: uint32(l.Salt(false))}
	d.mu.Lock()
	d.links[g] = true
	if l.c.broken.Load() != nil { // abort has not seen it
		g.status.Abort.Store(1)
	}
	d.mu.Unlock()
	return g, nil
}

// otherSlot is the number of the other end.
func (l *Link) otherSlot(theirs *linkSlot) int {
	p := &l.c.peers[l.peer]
	table, err := p.mem.Resolve(p.area.channels.at.location(), tableBytes(l.c.size))
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
	g.l.c.nouns.mu.Lock()
	theirs := g.l.theirs
	g.l.c.nouns.mu.Unlock()
	if theirs != nil && theirs.key.Load() == g.l.otherKey() && theirs.state.Load() == stateClosed &&
		g.l.c.peers[g.l.peer].area.lost.Load() == 0 {
		g.fail(fmt.Errorf("rank %d has closed its side of %s: %w", g.l.peer, g.l.name(), fault.ErrClosed))
	}
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
	c := g.l.c
	var err error
	switch code := g.status.Error.Load(); code {
	case kernels.OK:
		return nil
	case kernels.Timeout:
		err = fmt.Errorf("nothing from it for %v, which ends the channel: %w", c.opts.Timeout, fault.ErrTimeout)
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
		err = &fault.Error{Op: "channel", Rank: c.rank, Peer: g.l.peer, Host: c.peers[c.rank].host, Step: "wait",
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
	mine := g.d.links[g]
	delete(g.d.links, g)
	g.d.mu.Unlock()
	if !mine {
		return nil
	}
	for s := range g.streams { // nothing is launched any more
		s.quiet()
	}
	for s := range g.streams {
		s.leaveLink(g)
	}
	g.mu.Lock()
	g.look()
	g.released = true
	g.mu.Unlock()
	var errs []error
	for _, s := range g.own {
		if s != nil {
			g.d.gpu.remove(s)
			errs = append(errs, s.device.cu.Close())
		}
	}
	for _, e := range g.events {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	errs = append(errs, g.peer.Unhold(g.extent))
	g.claim.Release()
	return errors.Join(errs...)
}

// leaveLink ends g's use of the stream, when nothing of g is queued any more; its error stays.
func (s *Stream) leaveLink(g *gpuLink) {
	err := g.collect()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.device.links[g] {
		return
	}
	delete(s.device.links, g)
	if err != nil {
		s.errs = append(s.errs, err)
	}
}
