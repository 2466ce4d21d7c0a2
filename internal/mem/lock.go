package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
)

// Lock keeps a's pages in memory until Unlock or Retire; the caller keeps a alive meanwhile. It supports only memory of
// arenas, and returns fault.ErrNotSupported for other memory: locks do not nest, so the heap must not lock and unlock
// pages that somebody else owns. It returns fault.ErrLimit at the system's limit.
func (a *Allocation) Lock() error {
	switch {
	case a.Origin != Arena:
		return fmt.Errorf("memory that was adopted is its owner's to lock: %w", fault.ErrNotSupported)
	case a.arena == nil:
		return fmt.Errorf("it is on the Go heap, for the race detector: %w", fault.ErrNotSupported)
	}
	return shm.Lock(a.Ptr, a.pages)
}

// Unlock undoes Lock.
func (a *Allocation) Unlock() error { return shm.Unlock(a.Ptr, a.pages) }
