package mem

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
)

// A grant lets peers use part of an allocation until it is revoked: a slot of the directory with a generation of its
// own, so that peers see in one load whether it still holds. Grants and allocations share MaxSlots.

// Grant makes a grant. Of the location it returns, only Slot and Generation mean anything.
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

// Revoke ends a grant: peers that look from now on see it. A second Revoke does nothing.
func (h *Heap) Revoke(g Location) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || !h.dir.Live(g) {
		return
	}
	h.dir.slots[g.Slot].Store(0)
	h.freeSlots = append(h.freeSlots, g.Slot)
}
