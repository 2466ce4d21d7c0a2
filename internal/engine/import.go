package engine

import (
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Import is a peer's Export, as this rank uses it. Any goroutine may call its methods.
type Import struct {
	Export
	Rank   int             // the peer
	Memory team.PeerMemory // the peer's
	ended  atomic.Bool
}

// Live returns why this rank must not use the memory any more, or nil.
func (im *Import) Live() error {
	switch {
	case im.ended.Load():
		return fmt.Errorf("the remote memory: %w", fault.ErrClosed)
	case !im.Memory.Live(im.Grant):
		return fmt.Errorf("rank %d has closed the registration or freed the memory: %w", im.Rank, fault.ErrStale)
	}
	return nil
}

// End ends the import for this rank. It reports whether this is the first call.
func (im *Import) End() (first bool) { return !im.ended.Swap(true) }
