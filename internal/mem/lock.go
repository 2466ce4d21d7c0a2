package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
)

// Lock keeps a's pages in memory until Unlock or Retire; the caller sees to it that a lives meanwhile. It is for memory
// of arenas, whose pages are nobody else's: locks do not nest, so that of memory that somebody else owns neither page
// nor lock is the heap's. Then the error is fault.ErrNotSupported; fault.ErrLimit is that of the system.
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
