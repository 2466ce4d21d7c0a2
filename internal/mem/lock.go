package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// Lock keeps a's pages in memory until as many calls of Unlock, or Retire; the caller keeps a alive meanwhile. The
// system's locks do not nest, so Lock counts: a registration may begin while the one before it still ends. For the same
// reason the heap must not lock and unlock pages that somebody else owns: Lock supports only memory of arenas, and
// returns fault.ErrNotSupported for other memory. It returns fault.ErrLimit at the system's limit, and has locked
// nothing then.
func (a *Allocation) Lock() error {
	switch {
	case a.Origin != Arena:
		return fmt.Errorf("memory that was adopted is its owner's to lock: %w", fault.ErrNotSupported)
	case a.arena == nil:
		return fmt.Errorf("it is on the Go heap, for the race detector: %w", fault.ErrNotSupported)
	}
	a.locking.Lock()
	defer a.locking.Unlock()
	if a.locks == 0 {
		if err := shm.Lock(a.Ptr, a.pages); err != nil {
			return err
		}
	}
	a.locks++
	return nil
}

// Unlock undoes one Lock.
func (a *Allocation) Unlock() error {
	a.locking.Lock()
	defer a.locking.Unlock()
	a.locks--
	if invariants.Enabled {
		a.checkLocks()
	}
	if a.locks > 0 {
		return nil
	}
	return shm.Unlock(a.Ptr, a.pages)
}
