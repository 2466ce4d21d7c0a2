package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// device is a communicator's side of this rank's device. Kernels of all ranks agree, and move data, through the areas
// in their devices' memory; the host queues them and waits for nobody.
type device struct {
	c    *Comm
	gpu  *domainGPU
	area *mem.Allocation
	page *mem.Allocation // host memory, of status

	status  *kernels.Status // what kernels tell the host, and the host them
	params  kernels.Params  // what is the same for all operations; the caller of one fills the rest
	threads int             // of a block
	blocks  int             // of collectives, at most
	room    room
	own     *gpuStream  // of blocking calls
	event   *cuda.Event // orders streams
	ops     uint64      // that were queued; by whose turn it is

	collectives, uncounted uint64 // see kinds.go; likewise

	next      launching            // likewise
	functions map[kernelKey]loaded // likewise: those that were used

	kept Keeper // what captures of others use

	last     atomic.Pointer[gpuStream] // on which the last operation was queued
	launches atomic.Uint64             // how many were, and
	ended    atomic.Uint64             // how many when all were seen to have ended

	mu      sync.Mutex
	gone    bool
	pending []error // that no Sync has returned
	graphs  map[*DeviceGraph]bool

	clients []client
	lines   int // of the status page

	watching sync.Once
	stop     chan struct{}
	stopped  chan struct{} // nil until the watchdog runs
}

// deviceCard is what a rank tells of its device when a communicator is made, or why it cannot use it.
type deviceCard struct {
	Extent  uint32 `json:"extent"` // the area
	Threads int    `json:"threads"`
	Why     string `json:"why,omitempty"`
}

// statusLine is the size of a status line, of which there is one for collectives, and those of the clients.
const statusLine = 64

// line is the status in a line of the page, and lineAddr where kernels find it.
func (d *device) line(n int) *kernels.Status {
	return (*kernels.Status)(unsafe.Add(unsafe.Pointer(d.status), statusLine*n))
}

func (d *device) lineAddr(n int) uint64 { return d.params.Status + uint64(statusLine*n) }

// deviceOf is c's side of its device, or nil.
func deviceOf(c *Comm) *device { return c.device }

// maxThreads of a block; more would not hide more.
const maxThreads = 512

// newDevice makes this rank's side, and its card. Failures are told in the card: ranks use their devices together or not
// at all, and the communicator works without.
func (c *Comm) newDevice() deviceCard {
	if c.gpuWhy != nil {
		return deviceCard{Why: c.gpuWhy.Error()}
	}
	card, err := c.makeDevice()
	if err != nil {
		return deviceCard{Why: fmt.Sprintf("rank %d could not set its device up: %v", c.rank, err)}
	}
	return card
}

func (c *Comm) makeDevice() (card deviceCard, err error) {
	g := c.dom.gpu
	d := &device{c: c, gpu: g, graphs: map[*DeviceGraph]bool{},
		stop:      make(chan struct{}),
		functions: map[kernelKey]loaded{}}
	c.device = d
	d.lines = 1
	for _, a := range c.attached {
		if m, ok := a.(clientMaker); ok {
			k := m.onDevice(d)
			k.begin(d.lines)
			d.lines += k.lines()
			d.clients = append(d.clients, k)
		}
	}
	bytes := (statusLine*d.lines + 4095) &^ 4095
	if d.area, err = c.dom.Heap.AllocDevice(kernels.AreaBytes(c.size)); err != nil {
		return card, fmt.Errorf("area: %w", err)
	}
	if card.Extent, err = c.dom.Exports.Export(d.area); err != nil {
		return card, fmt.Errorf("export of the area: %w", err)
	}
	if d.page, err = c.dom.Heap.Alloc(bytes); err != nil {
		return card, err
	}
	at, err := g.ctx.HostRegister(d.page.Ptr, bytes)
	if err != nil {
		return card, err
	}
	d.status = (*kernels.Status)(d.page.Ptr)
	// Nothing is loaded later, when the driver would wait for kernels that wait for peers. If some do now, since this is the
	// child of a communicator, it has kernels that were made for more ranks.
	if g.idle() {
		if err := g.set.Load(c.size, c.size > 2 || c.opts.Algorithm == "ring"); err != nil {
			return card, err
		}
	}
	f, err := g.set.Kernel(kernels.Barrier, dtype.Invalid, c.size)
	if err != nil {
		return card, err
	}
	card.Threads = min(maxThreads, f.MaxThreads)
	if d.own, err = newStream(g.ctx); err != nil {
		return card, err
	}
	if d.event, err = g.ctx.NewEvent(false); err != nil {
		return card, err
	}
	d.params = kernels.Params{Status: uint64(at), Rank: uint32(c.rank), Ranks: uint32(c.size),
		Timeout: uint64(c.opts.Timeout)}
	d.params.Area[0] = uint64(d.area.Base())
	return card, nil
}

// meetDevices maps the areas of the others, whose cards are in rank order. It returns why the devices cannot be used, or
// "".
func (c *Comm) meetDevices(ctx context.Context, cards []deviceCard) string {
	for r := range cards {
		if cards[r].Why != "" {
			return cards[r].Why
		}
	}
	d := c.device
	d.room = roomOf(c.multiprocessors, c.size)
	d.blocks = min(d.room.collectives, kernels.MaxBlocks)
	d.threads = maxThreads
	for r, k := range cards {
		d.threads = min(d.threads, k.Threads)
		if r == c.rank {
			continue
		}
		at, err := c.devicePeer(r).Import(ctx, k.Extent)
		if err != nil {
			return fmt.Sprintf("rank %d could not import the area of rank %d: %v", c.rank, r, err)
		}
		d.params.Area[d.distance(r)], d.params.Table[d.distance(r)] = uint64(at), uint64(c.devicePeer(r).Row())
	}
	if d.threads < 1 || d.blocks < 1 {
		return fmt.Sprintf("kernels of %d blocks of %d threads", d.blocks, d.threads)
	}
	return ""
}

// distance is how far behind this rank rank r is, which is how kernels count ranks.
func (d *device) distance(r int) int { return (r - d.c.rank + d.c.size) % d.c.size }

// settleDevice ends the setting up: whys are what each rank's meetDevices returned.
func (c *Comm) settleDevice(whys []string) error {
	for _, why := range whys {
		if why == "" {
			continue
		}
		if !errors.Is(c.gpuWhy, hw.ErrNotSupported) { // else all ranks have found it out alike
			c.gpuWhy = fmt.Errorf("%s: %w", why, hw.ErrNotSupported)
		}
		return c.dropDevice()
	}
	return nil
}

// dropDevice gives up the device of a communicator that does not use it after all; its memory goes with the
// communicator's.
func (c *Comm) dropDevice() error {
	d := c.device
	if d == nil {
		return nil
	}
	c.device = nil
	err := d.close()
	c.shared = append(c.shared, d.allocations()...)
	return err
}

// allocations are what the device's side has in memory.
func (d *device) allocations() (all []*mem.Allocation) {
	if d == nil {
		return nil
	}
	for _, a := range []*mem.Allocation{d.area, d.page} {
		if a != nil {
			all = append(all, a)
		}
	}
	return all
}

// busy reports whether something that was queued has not ended.
func (d *device) busy() bool {
	s := d.last.Load()
	if s == nil {
		return false
	}
	done, err := s.done()
	return err == nil && !done
}

// running reports whether a collective may be running, or come to run, beside what is queued on s next.
func (d *device) running(s *gpuStream) bool {
	if last := d.last.Load(); last == nil || last == s {
		return false
	}
	n := d.launches.Load()
	if n == d.ended.Load() {
		return false
	}
	if d.busy() {
		return true
	}
	d.ended.Store(n)
	return false
}

// close ends this rank's side but for its memory. What is queued ends first: before its deadline, or at once if the
// communicator is broken.
func (d *device) close() error {
	if d == nil {
		return nil
	}
	close(d.stop)
	d.mu.Lock()
	stopped := d.stopped
	d.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
	if s := d.last.Load(); s != nil {
		s.quiet()
	}
	d.gpu.mu.Lock()
	delete(d.gpu.streams, d.own)
	var streams []*gpuStream
	for s := range d.gpu.streams {
		streams = append(streams, s)
	}
	d.gpu.mu.Unlock()
	for _, s := range streams {
		s.leave(d)
	}
	d.mu.Lock()
	d.gone = true
	graphs := d.graphs
	d.graphs = nil
	d.mu.Unlock()
	errs := []error{d.kept.Close()}
	for g := range graphs {
		errs = append(errs, g.release())
	}
	for _, k := range d.clients {
		errs = append(errs, k.close())
	}
	if d.own != nil {
		errs = append(errs, d.own.cu.Close()) // nobody else has it
	}
	if d.event != nil {
		errs = append(errs, d.event.Close())
	}
	if d.status != nil {
		errs = append(errs, d.gpu.ctx.HostUnregister(unsafe.Pointer(d.status)))
	}
	return errors.Join(errs...)
}

// abort ends all waits of kernels.
func (d *device) abort() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone || d.status == nil {
		return
	}
	d.status.Abort.Store(1)
	for _, k := range d.clients {
		k.abort()
	}
}
