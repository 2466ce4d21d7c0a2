package gpu

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// pinned is a rank's page-locked host memory, through which data of its device go to other hosts. It is registered, for
// peers of the host and RDMA devices, and counts as that. It is kept until the domain ends: to unlock it, the driver would
// wait until no kernel runs.
type pinned struct {
	mu   sync.Mutex
	free []*mem.Allocation
	all  []*mem.Allocation
}

// pinnedLeast is the least that is allocated.
const pinnedLeast = 64 << 10

// take returns memory of at least n bytes.
func (p *pinned) take(d *Domain, n int) (*mem.Allocation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := -1
	for i, a := range p.free {
		if a.Bytes >= n && (best < 0 || a.Bytes < p.free[best].Bytes) {
			best = i
		}
	}
	if best >= 0 {
		a := p.free[best]
		last := len(p.free) - 1
		p.free[best] = p.free[last]
		p.free = p.free[:last]
		return a, nil
	}
	return p.grow(d, 1<<bits.Len(uint(max(n, pinnedLeast)-1)))
}

// grow allocates and registers n bytes. The caller holds mu.
func (p *pinned) grow(d *Domain, n int) (*mem.Allocation, error) {
	h, cache := d.dom.Heap, d.dom.Cache
	a, err := h.Alloc(n)
	if err != nil {
		return nil, err
	}
	ref, err := cache.Register(engine.Memory(a), a.Base(), n)
	if err != nil {
		return nil, errors.Join(err, h.Retire(a))
	}
	if !h.GoHeap() { // which the driver must not lock; its copies then take longer
		if _, err := d.Context.HostRegister(a.Ptr, n); err != nil {
			return nil, errors.Join(err, ref.Close(), h.Retire(a))
		}
		p.all = append(p.all, a)
	}
	return a, nil
}

func (p *pinned) give(a *mem.Allocation) {
	p.mu.Lock()
	p.free = append(p.free, a)
	p.mu.Unlock()
}

// Unpin implements DomainDevice.
func (d *Domain) Unpin() error {
	d.pinned.mu.Lock()
	defer d.pinned.mu.Unlock()
	var errs []error
	for _, a := range d.pinned.all {
		errs = append(errs, d.Context.HostUnregister(a.Ptr))
	}
	d.pinned.all, d.pinned.free = nil, nil
	return errors.Join(errs...)
}

// Take implements team.Pinned.
func (d *Device) Take(n int) (*mem.Allocation, error) { return d.Domain.pinned.take(d.Domain, n) }

// Give implements team.Pinned.
func (d *Device) Give(a *mem.Allocation) { d.Domain.pinned.give(a) }

// Copy implements team.Pinned. It queues on the stream of blocking calls.
func (d *Device) Copy(dst, src unsafe.Pointer, n int) error {
	if n == 0 {
		return nil
	}
	if err := d.Domain.BeginQueueing(d.own); err != nil {
		return err
	}
	defer d.Domain.EndQueueing()
	return d.own.Use(func(cu *cuda.Stream) error {
		d.own.Enter(d, d.Domain)
		return cu.Copy(cuda.Addr(uintptr(dst)), cuda.Addr(uintptr(src)), n)
	})
}

// Wait implements team.Pinned. Copies end by themselves.
func (d *Device) Wait() error {
	return d.own.Await(func(waited time.Duration) error {
		if waited > time.Duration(d.c.Team().Timeout.Load())+WaitGrace {
			return fmt.Errorf("copies have not ended after %v: %w", waited.Round(time.Second), fault.ErrTimeout)
		}
		return nil
	})
}
