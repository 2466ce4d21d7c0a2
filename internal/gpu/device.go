// Package gpu is a communicator's device side: areas, streams, launches, graphs, errors of kernels, and the watchdog.
// Other parts that use the device, beside collectives, are its clients.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Device is a communicator's side of this rank's device. Kernels of all ranks agree, and move data, through the areas
// in their devices' memory. The host queues kernels and does not wait for peers.
type Device struct {
	c      *engine.Comm
	Domain *Domain
	Layout kernels.Layout // layout of areas
	Area   *mem.Allocation
	page   *page // the status page

	multi   multicast
	staging Extra
	making  sync.WaitGroup // goroutines that make extras
	noExtra sync.Once      // logs that an Extra could not be made
	hurries atomic.Bool    // a peer took too long to map memory: await does not wait again

	status  *kernels.Status // line 0 of the status page: kernels report errors here, and the host aborts them
	Params  kernels.Params  // what is the same for all operations; each launch copies it and fills in what is its own
	Threads int             // per block
	Blocks  int             // of a collective, at most
	Room    room
	units   int // of the device's room, taken until Close
	waits   waits
	own     *Stream     // for blocking calls
	event   *cuda.Event // orders streams
	ops     uint64      // operations queued; the turn guards it

	collectives, uncounted uint64 // see team/divergence.go; the turn guards them

	next      launching            // the turn guards it
	functions map[kernelKey]loaded // kernels used so far; the turn guards them

	carry carry         // between hosts
	Proxy Proxy         // of what the host does for streams
	kept  engine.Keeper // memory that users' own captures use

	last     atomic.Pointer[Stream] // the stream of the last operation
	launches atomic.Uint64          // operations queued
	ended    atomic.Uint64          // value of launches when all were last seen to have ended

	mu      sync.Mutex
	gone    bool
	pending []error // errors that no Sync has returned yet
	graphs  map[*Graph]bool
	extras  []*mem.Allocation // memory of Extras

	Areas, Tables []uint64 // as in Params, of all ranks, by distance

	Multiprocessors int     // the least of all ranks' devices
	Atomics         []error // by rank of the team: why this device cannot do atomics on that rank's device, or nil

	clients []Client

	watching sync.Once
	stop     chan struct{}
	stopped  chan struct{} // nil until the watchdog runs
}

// statusLine is the size of a status line. Collectives have line 0, the clients those after it.
const statusLine = 64

// Status returns line n of the status page.
func (d *Device) Status(n int) *kernels.Status {
	return (*kernels.Status)(unsafe.Add(unsafe.Pointer(d.status), statusLine*n))
}

// StatusAddr returns the address of line n for kernels.
func (d *Device) StatusAddr(n int) uint64 { return d.Params.Status + uint64(statusLine*n) }

// LockStatus keeps the status page from being freed until UnlockStatus. It returns false, unlocked, if the page is
// gone.
func (d *Device) LockStatus() bool {
	d.mu.Lock()
	if d.gone {
		d.mu.Unlock()
		return false
	}
	return true
}

// UnlockStatus ends LockStatus.
func (d *Device) UnlockStatus() { d.mu.Unlock() }

// DeviceOf returns c's side of its device, or nil.
func DeviceOf(c *engine.Comm) *Device {
	d, _ := c.Accelerator().(*Device)
	return d
}

// The kernels and the engine must have the same limits.
var (
	_ [engine.MaxRanks]struct{}   = [kernels.MaxRanks]struct{}{}
	_ [engine.MaxExtents]struct{} = [kernels.MaxExtents]struct{}{}
)

func newDevice(c *engine.Comm, g *Domain, l kernels.Layout) *Device {
	d := &Device{c: c, Domain: g, Layout: l, graphs: map[*Graph]bool{},
		stop:      make(chan struct{}),
		functions: map[kernelKey]loaded{}, multi: multicast{fd: -1}}
	d.Proxy.d, d.Proxy.stop = d, make(chan struct{})
	return d
}

// Part implements Accelerator.
func (d *Device) Part(c *engine.Comm, ranks []int) engine.Accelerator {
	p := newDevice(c, d.Domain, kernels.Small(len(ranks)))
	p.Multiprocessors, p.Atomics = d.Multiprocessors, make([]error, len(ranks))
	p.Room = RoomOf(d.Multiprocessors, len(ranks))
	if d.Domain.Sharers > 1 {
		p.Room = laterShare(len(ranks))
	}
	for r, was := range ranks {
		p.Atomics[r] = d.Atomics[was]
	}
	return p
}

// Card implements Accelerator.
func (d *Device) Card(ctx context.Context) (card engine.DeviceCard, err error) {
	c, g, ranks := d.c, d.Domain, d.c.Team().Size()
	defer func() {
		if err != nil && g.Sharers > 1 {
			err = fmt.Errorf("%v%s: %w", g.Context.Device(), g.sharing(), err)
		}
	}()
	lines := 1 // of the status page
	for _, a := range c.Attachments() {
		if m, ok := a.(ClientMaker); ok {
			k := m.OnDevice(d)
			k.PlaceLines(lines)
			lines += k.StatusLines()
			d.clients = append(d.clients, k)
		}
	}
	bytes := (statusLine*lines + 4095) &^ 4095
	if d.Area, err = c.Domain().Heap.AllocDevicePart(d.Layout.Bytes()); err != nil {
		return card, fmt.Errorf("area: %w", err)
	}
	if card.Extent, card.Offset, err = export(c.Domain(), d.Area); err != nil {
		return card, fmt.Errorf("export of the area: %w", err)
	}
	if g.Sharers > 1 {
		if err := g.shared.takeUnits(d.Room.units(), d.Multiprocessors); err != nil {
			return card, err
		}
		d.units = d.Room.units()
	}
	if d.page, err = g.shared.takePage(bytes); err != nil {
		return card, err
	}
	d.status = (*kernels.Status)(unsafe.Pointer(&d.page.bytes[0]))
	// Load now whatever may be needed, because later the driver would wait for kernels, which wait for peers. If
	// kernels run now, c was made from a communicator with more ranks, and uses that communicator's kernels.
	if !g.shared.busy() {
		if err := g.reserve(ranks); err != nil {
			return card, err
		}
		if err := g.Kernels.Load(ctx, ranks, ranks > 2 || c.Options().Algorithm == "ring", c.Size() == 1); err != nil {
			return card, err
		}
	}
	f, err := g.Kernels.Kernel(kernels.Barrier, dtype.Invalid, ranks)
	if err != nil {
		return card, err
	}
	card.Threads = min(kernels.MaxThreads, f.MaxThreads)
	card.Lines = d.carriesLines()
	if d.own, err = g.NewStream(); err != nil {
		return card, err
	}
	if d.event, err = g.Context.NewEvent(false); err != nil {
		return card, err
	}
	d.Params = kernels.Params{Status: uint64(d.page.at), Rank: uint32(c.Team().Rank()), Timeout: uint64(c.Options().Timeout)}
	d.Layout.Fill(&d.Params)
	d.Params.Area[0] = uint64(d.Area.Base())
	return card, nil
}

// Meet implements Accelerator: it maps the areas of the others.
func (d *Device) Meet(ctx context.Context, cards []engine.DeviceCard) string {
	c := d.c
	d.Blocks = min(d.Room.Collectives, kernels.MaxBlocks)
	d.Threads = d.Room.Threads
	lines := true
	d.Areas, d.Tables = make([]uint64, len(cards)), make([]uint64, len(cards))
	d.Areas[0] = d.Params.Area[0]
	for r, k := range cards {
		d.Threads = min(d.Threads, k.Threads)
		lines = lines && k.Lines
		if r == c.Team().Rank() {
			continue
		}
		at, err := c.DevicePeer(r).Import(ctx, k.Extent, k.Offset, d.Layout.Bytes())
		if err != nil {
			return fmt.Sprintf("rank %d could not import the area of rank %d: %v", c.Rank(), d.Name(r), err)
		}
		d.Areas[d.Distance(r)], d.Tables[d.Distance(r)] = uint64(at), uint64(c.DevicePeer(r).Row())
	}
	if len(cards) > kernels.Narrow {
		offset, b := d.Layout.Peers(d.Areas, d.Tables)
		if err := d.Domain.Copy(cuda.Addr(d.Area.Base())+cuda.Addr(offset), b, true); err != nil {
			return fmt.Sprintf("rank %d could not list the areas of its peers: %v", c.Rank(), err)
		}
	} else {
		copy(d.Params.Area[:], d.Areas)
		copy(d.Params.Table[:], d.Tables)
	}
	if !lines || d.Layout.LineRow == 0 || d.Threads%kernels.LineThreads != 0 {
		t := c.Team().Tuning()
		t.GPU = t.GPU.WithoutLines()
	}
	if d.Threads < len(cards) || d.Blocks < 1 {
		return fmt.Sprintf("kernels of %d blocks of %d threads", d.Blocks, d.Threads)
	}
	return ""
}

// carriesLines reports whether this device has native links to all others, which carry atomic operations. Such a link
// also carries the store of a whole warp in one piece.
func (d *Device) carriesLines() bool {
	for _, why := range d.Atomics {
		if why != nil {
			return false
		}
	}
	return true
}

// Distance returns how far rank r of the team is from this rank: kernels number ranks this way.
func (d *Device) Distance(r int) int {
	n := d.c.Team().Size()
	return (r - d.c.Team().Rank() + n) % n
}

// Allocations implements Accelerator.
func (d *Device) Allocations() (all []*mem.Allocation) {
	if d.Area != nil {
		all = append(all, d.Area)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return append(all, d.extras...)
}

// Busy implements Accelerator.
func (d *Device) Busy() bool {
	s := d.last.Load()
	if s == nil || s == d.own && d.carry.told.Load() {
		return false
	}
	done, err := s.Done()
	return err == nil && !done
}

// RunsConcurrently reports whether a collective may run, now or later, at the same time as work queued on s next.
func (d *Device) RunsConcurrently(s *Stream) bool {
	if last := d.last.Load(); last == nil || last == s {
		return false
	}
	n := d.launches.Load()
	if n == d.ended.Load() {
		return false
	}
	if d.Busy() {
		return true
	}
	d.ended.Store(n)
	return false
}

// Close implements Accelerator.
func (d *Device) Close() error {
	close(d.stop)
	d.mu.Lock()
	stopped := d.stopped
	d.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	if s := d.last.Load(); s != nil {
		s.Quiet()
	}
	d.c.Team().PublishIdle()
	d.carry.close(d)
	d.Domain.Remove(d.own)
	for _, s := range d.Domain.all() {
		s.Leave(d)
	}
	d.mu.Lock()
	d.gone = true
	graphs := d.graphs
	d.graphs = nil
	d.mu.Unlock()
	d.making.Wait()
	errs := []error{d.kept.Close(), d.closeMulticast()}
	for g := range graphs {
		errs = append(errs, g.release())
	}
	// A channel end that still exists was given up when the communicator broke, which ended its waits. It may go once
	// Abort no longer reaches it.
	for _, k := range d.clients {
		errs = append(errs, k.Close())
	}
	late := d.Proxy.close()
	if d.own != nil {
		errs = append(errs, d.own.End())
	}
	if d.event != nil {
		errs = append(errs, d.event.Close())
	}
	if d.page != nil && !late {
		d.Domain.shared.givePage(d.page)
	}
	d.Domain.shared.giveUnits(d.units)
	return errors.Join(errs...)
}

// Abort implements Accelerator.
func (d *Device) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone || d.status == nil {
		return
	}
	d.status.Abort.Store(1)
	for _, k := range d.clients {
		k.Abort()
	}
}

// SetTimeout implements Accelerator.
func (d *Device) SetTimeout(t time.Duration) {
	d.Params.Timeout = uint64(t)
}
