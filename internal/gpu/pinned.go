package gpu

import (
	"errors"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// pinned is a rank's page-locked host memory, through which data of its device go to other hosts. It is registered, for
// peers of the host and RDMA devices, and counts as that. It is kept until the domain ends: to unlock it, the driver waits
// until no kernel runs, while to lock more takes a millisecond or two for 16 MiB, whatever runs (H200, driver 580).
type pinned struct {
	mu   sync.Mutex
	free []*locked
	all  []*locked
}

// locked is a piece of it.
type locked struct {
	ptr   unsafe.Pointer
	bytes int
	at    cuda.Addr       // on the device
	alloc *mem.Allocation // nil: peers do not reach it
	page  *page           // in a heap that allocates from the Go heap, which devices do not reach
}

// pinnedLeast is the least that is allocated, and sizes are pinnedLeast times a power of pinnedStep.
const (
	pinnedLeast = 64 << 10
	pinnedStep  = 4
)

// pinnedSize is how much is allocated for n bytes.
func pinnedSize(n int) int {
	size := pinnedLeast
	for size < n && size <= 16<<20 {
		size *= pinnedStep
	}
	if size < n {
		size = 1 << bits.Len(uint(n-1))
	}
	return size
}

// take returns memory of at least n bytes.
func (p *pinned) take(d *Domain, n int) (*locked, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := -1
	for i, a := range p.free {
		if a.bytes >= n && (best < 0 || a.bytes < p.free[best].bytes) {
			best = i
		}
	}
	if best < 0 {
		return p.grow(d, pinnedSize(n))
	}
	a := p.free[best]
	last := len(p.free) - 1
	p.free[best] = p.free[last]
	p.free = p.free[:last]
	return a, nil
}

// grow allocates and registers n bytes. The caller holds mu.
func (p *pinned) grow(d *Domain, n int) (*locked, error) {
	h, cache := d.dom.Heap, d.dom.Cache
	if h.GoHeap() {
		page, err := d.shared.takePage(n)
		if err != nil {
			return nil, err
		}
		l := &locked{ptr: unsafe.Pointer(&page.bytes[0]), bytes: n, at: page.at, page: page}
		p.all = append(p.all, l)
		return l, nil
	}
	a, err := h.Alloc(n)
	if err != nil {
		return nil, err
	}
	ref, err := cache.Register(engine.Memory(a), a.Base(), n)
	if err != nil {
		return nil, errors.Join(err, h.Retire(a))
	}
	at, err := d.Context.HostRegister(a.Ptr, n)
	if err != nil {
		return nil, errors.Join(err, ref.Close(), h.Retire(a))
	}
	l := &locked{ptr: a.Ptr, bytes: n, at: at, alloc: a}
	p.all = append(p.all, l)
	return l, nil
}

func (p *pinned) give(all ...*locked) {
	p.mu.Lock()
	p.free = append(p.free, all...)
	p.mu.Unlock()
}

// Unpin implements DomainDevice.
func (d *Domain) Unpin() error {
	d.pinned.mu.Lock()
	defer d.pinned.mu.Unlock()
	var errs []error
	for _, l := range d.pinned.all {
		if l.page != nil {
			d.shared.givePage(l.page)
			continue
		}
		errs = append(errs, d.Context.HostUnregister(l.ptr))
	}
	d.pinned.all, d.pinned.free = nil, nil
	return errors.Join(errs...)
}
