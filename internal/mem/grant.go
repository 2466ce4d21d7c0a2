package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// A grant lets peers use part of an allocation until it is revoked. It is a slot of the directory with its own
// generation, so that peers need one load to see whether it is still valid. Grants and allocations share MaxSlots.

// Grant makes a grant. Only Slot and Generation of the location are meaningful.
func (h *Heap) Grant() (Location, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return Location{}, fmt.Errorf("grant after the rank's last communicator: %w", fault.ErrClosed)
	}
	slot, err := h.slot()
	if err != nil {
		return Location{}, err
	}
	h.generation++
	h.dir.slots[slot].Store(h.generation)
	return Location{Slot: slot, Generation: h.generation}, nil
}

// Revoke ends a grant: peers that check from now on see it. Revoking it again does nothing.
func (h *Heap) Revoke(g Location) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || !h.dir.Live(g) {
		return
	}
	h.dir.slots[g.Slot].Store(0)
	h.freeSlots = append(h.freeSlots, g.Slot)
	if invariants.Enabled {
		h.check()
	}
}
