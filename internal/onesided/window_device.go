package onesided

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/internal/gpuend"
	"github.com/ubcoll/ubcoll/internal/team"
)

// windowSlot is a window's end towards one rank of the team, as the occupant of a slot.
type windowSlot struct {
	w    *Window
	rank int
}

func (s windowSlot) left() bool {
	if !s.w.ended.Load() || s.rank == s.w.c.Team().Rank() {
		return s.w.ended.Load()
	}
	reader := s.w.reader(s.rank)
	return reader.Done()
}

// takeSlots takes a slot for each rank of the team. Peers write to the ends only after all ranks have agreed on the window.
func (w *Window) takeSlots() error {
	c, sp := w.c, w.sp
	if err := sp.noDevice(); err != nil {
		return err
	}
	w.device = sp.device.NewWindow(w.vec)
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for r := range c.Team().Size() {
		slot := sp.freeSlot(true)
		if most := sp.deviceSlots(); slot < 0 || slot >= most {
			return noDeviceEnd(most)
		}
		sp.used[slot] = windowSlot{w, r}
		w.slots = append(w.slots, slot)
		if err := sp.device.Clear(slot); err != nil {
			return err
		}
	}
	return nil
}

// openEnd makes the end towards rank i of the team.
func (w *Window) openEnd(ctx context.Context, i int) error {
	k := &w.ranks[i]
	r := k.Rank
	if err := w.sp.noDevice(); err != nil {
		return fmt.Errorf("map the window of rank %d: %w", r, err)
	}
	if err := w.device.Open(ctx, gpuend.Config{Signals: gpuend.Signals{Owner: w, Op: "window",
		Name: "the window " + between(w.c, r), Rank: r, Index: i, Slot: w.slots[i], PeerSlot: k.slot,
		PeerClosed: func() bool { return k.block.state.Load() == team.StateClosed }},
		Memory: gpuend.Memory{Local: w.reg, Remote: &k.Import}}); err != nil {
		return fmt.Errorf("map the window of rank %d: %w", r, err)
	}
	return nil
}

// discardEnds releases the ends of a window that was not completed, and their slots.
func (w *Window) discardEnds() error {
	if w.device == nil {
		return nil
	}
	err := w.device.Discard()
	w.sp.mu.Lock()
	for _, i := range w.slots {
		w.sp.used[i] = nil
	}
	w.sp.mu.Unlock()
	return err
}
