package mem

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// View makes an allocation of n bytes of a peer's memory, mapped at p to be read. The heap does not list it: its memory
// is the peer's, so it has no generation and is never registered. The caller ends it with EndView.
func (h *Heap) View(p unsafe.Pointer, n int) *Allocation {
	return &Allocation{Ptr: p, Bytes: n, Origin: View, ReadOnly: true, heap: h}
}

// EndView ends a View: no new use of it begins, and when the last one has ended, unmap is called. A second EndView
// returns fault.ErrClosed.
func (a *Allocation) EndView(unmap func()) error {
	if a.Origin != View {
		return fmt.Errorf("memory at %p is no view: %w", a.Ptr, fault.ErrArgument)
	}
	if err := a.Leave(func() error { return nil }); err != nil {
		return err
	}
	a.WhenIdle(unmap)
	return nil
}
