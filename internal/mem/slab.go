package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// slab is one of the driver's allocations, of which several of the heap's are parts, one behind the other: the driver
// makes none of less than its granularity. No place is used twice, since a peer that is about to let go of a part may
// still write there; the whole goes with the last part.
type slab struct {
	whole Allocation // of which Ptr and pages count
	used  int        // bytes
	parts int        // that live
}

// partGrain is what parts begin at multiples of.
const partGrain = 4096

// ReserveDevice makes room for parts of n bytes in one of the driver's allocations. It goes with the last of them.
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

// AllocDevicePart is AllocDevice of memory of the library's own: bytes that share an allocation of the driver's with
// others, at a multiple of 4 KiB. Who exports it exports all of them.
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

// slabOf is one that has room for n bytes. The caller holds slicing.
func (h *Heap) slabOf(n int) (*slab, error) {
	d := &h.device
	if d.slab != nil && d.slab.whole.pages-d.slab.used >= n {
		return d.slab, nil
	}
	s := &slab{whole: Allocation{Bytes: n, Dev: d.ctx.Device()}}
	if err := h.placeDevice(&s.whole); err != nil {
		return nil, err
	}
	d.slabs = append(d.slabs, s)
	if d.slab == nil || s.whole.pages-n > d.slab.whole.pages-d.slab.used {
		d.slab = s
	}
	return s, nil
}

// endPart gives up a part, and with the last one all of them.
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

// checkDevice says what is wrong with n bytes of device memory, or nil.
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
