package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// slab is one allocation of the driver, cut into several of the heap's, its parts, because the driver allocates at
// least its granularity. Places are not reused, since a peer that has not yet released a part may still write there.
// The slab is freed with its last part.
type slab struct {
	whole Allocation // only Ptr and pages are used
	used  int        // bytes
	parts int        // live ones
}

// partGrain is the alignment of parts.
const partGrain = 4096

// ReserveDevice makes room for parts of n bytes in one of the driver's allocations, which is freed with the last of
// them.
func (h *Heap) ReserveDevice(n int) error {
	err := h.checkDevice(n)
	if err == nil {
		err = h.enterDevice()
	}
	if err != nil {
		return err
	}
	defer h.device.calls.Done()
	h.device.slicing.Lock()
	defer h.device.slicing.Unlock()
	_, err = h.slabOf(n)
	return err
}

// AllocDevicePart is AllocDevice for the library's own memory. The bytes share one of the driver's allocations with
// others, at a multiple of 4 KiB. To export one part exports them all.
func (h *Heap) AllocDevicePart(n int) (*Allocation, error) {
	return h.allocDevice(n, func(a *Allocation) error {
		h.device.slicing.Lock()
		defer h.device.slicing.Unlock()
		a.pages = (a.Bytes + partGrain - 1) &^ (partGrain - 1)
		s, err := h.slabOf(a.pages)
		if err != nil {
			return err
		}
		a.Ptr, a.slab = pointer(cuda.Addr(s.whole.Base())+cuda.Addr(s.used)), s
		s.used += a.pages
		s.parts++
		return nil
	})
}

// AllocDeviceOwn is AllocDevice for the library's own memory.
func (h *Heap) AllocDeviceOwn(n int) (*Allocation, error) {
	return h.allocDevice(n, func(a *Allocation) error {
		s := &slab{whole: Allocation{Bytes: n, Dev: a.Dev}, parts: 1}
		if err := h.placeDevice(&s.whole, int(h.device.unit.Load())); err != nil {
			return err
		}
		s.used = s.whole.pages
		a.Ptr, a.pages, a.slab = s.whole.Ptr, s.whole.pages, s
		h.device.slicing.Lock()
		h.device.slabs = append(h.device.slabs, s)
		h.device.slicing.Unlock()
		return nil
	})
}

// slabOf returns a slab with room for n bytes. The caller holds slicing.
func (h *Heap) slabOf(n int) (*slab, error) {
	d := &h.device
	if d.slab != nil && d.slab.whole.pages-d.slab.used >= n {
		return d.slab, nil
	}
	s := &slab{whole: Allocation{Bytes: n, Dev: d.ctx.Device()}}
	if err := h.placeDevice(&s.whole, 0); err != nil {
		return nil, err
	}
	d.slabs = append(d.slabs, s)
	if d.slab == nil || s.whole.pages-n > d.slab.whole.pages-d.slab.used {
		d.slab = s
	}
	return s, nil
}

// endPart releases a part, and with the last one the slab.
func (h *Heap) endPart(s *slab) error {
	d := &h.device
	d.slicing.Lock()
	defer d.slicing.Unlock()
	if s.parts--; s.parts > 0 {
		return nil
	}
	if d.slab == s {
		d.slab = nil
	}
	for i, x := range d.slabs {
		if x == s {
			d.slabs = append(d.slabs[:i], d.slabs[i+1:]...)
			break
		}
	}
	return UnmapDevice(d.ctx, cuda.Addr(s.whole.Base()), s.whole.pages)
}

// checkDevice returns why n bytes of device memory cannot be allocated, or nil.
func (h *Heap) checkDevice(n int) error {
	switch {
	case h.device.ctx == nil:
		return fmt.Errorf("allocate on a device: this rank uses none: %w", fault.ErrNotSupported)
	case n <= 0:
		return fmt.Errorf("allocate %d bytes: %w", n, fault.ErrArgument)
	case n > 1<<46:
		return fmt.Errorf("allocate %d bytes: more than the address space: %w", n, fault.ErrLimit)
	}
	return nil
}
