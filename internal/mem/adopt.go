package mem

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// Adopt makes an allocation of memory that somebody else owns and keeps as it is until Free. It must not be on the Go
// heap. Peers cannot map it. back may be nil: see Return.
func (h *Heap) Adopt(p unsafe.Pointer, n int, back func()) (*Allocation, error) {
	if p == nil || n <= 0 || uintptr(p)+uintptr(n) < uintptr(p) {
		return nil, fmt.Errorf("%d bytes at %p: %w", n, p, fault.ErrArgument)
	}
	if h.device.ctx != nil {
		if m, err := cuda.Inspect(cuda.Addr(p)); err == nil && m.Type == cuda.OnDevice {
			return nil, fmt.Errorf("%d bytes at %p as memory of the host: it is memory of %v: %w", n, p, m.Device,
				fault.ErrArgument)
		}
	}
	a := &Allocation{Ptr: p, Bytes: n, Origin: Adopted, heap: h}
	if err := h.adopt(a, back); err != nil {
		return nil, err
	}
	return a, nil
}

// adopt enters memory that the heap did not make, and what gives it back.
func (h *Heap) adopt(a *Allocation, back func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("after the rank's last communicator: %w", fault.ErrClosed)
	}
	i, _ := slices.BinarySearchFunc(h.live, a.Base(), byBase)
	for _, b := range h.live[max(i-1, 0):min(i+1, len(h.live))] {
		if b.Base() < a.Base()+uintptr(a.Bytes) && a.Base() < b.Base()+uintptr(max(b.Bytes, b.pages)) {
			return fmt.Errorf("[%p,+%d): it overlaps memory at %p that is in use (Free that buffer first): %w",
				a.Ptr, a.Bytes, b.Ptr, fault.ErrInUse)
		}
	}
	slot, err := h.slot()
	if err != nil {
		return err
	}
	a.At.Slot = slot
	h.enter(a)
	if back != nil {
		if h.owed == nil {
			h.owed = map[*Allocation]func(){}
		}
		h.owed[a] = back
	}
	return nil
}

// Return tells the owner of adopted memory, by the function that Adopt was given, that nobody uses it any more. The caller
// has retired a, and holds no locks. Return does nothing the second time, once Close has begun, and after Quarantine: what
// it leaves, Close does, so that the function is called once.
func (h *Heap) Return(a *Allocation) {
	h.mu.Lock()
	var back func()
	if !h.closed && !a.kept.Load() {
		back = h.owed[a]
		delete(h.owed, a)
	}
	h.mu.Unlock()
	if back != nil {
		back()
	}
}
