// Package gpuend implements the ends of channels and windows over device memory. An end connects the memory of this
// rank's device with that of a peer's: kernels do its steps, and count its signals in the device areas.
package gpuend

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// Table is the open ends of a communicator's device. Its slots have numbers from 0; the caller chooses a free one for
// each end. Each end has the words and the status line of its slot. It implements gpu.Client.
type Table struct {
	c     *engine.Comm
	d     *gpu.Device
	first int // the first status line

	mu   sync.Mutex
	open map[*End]bool
	far  map[*FarEnd]bool
}

// NewTable makes the table of d.
func NewTable(d *gpu.Device) *Table {
	return &Table{c: d.Comm(), d: d, open: map[*End]bool{}, far: map[*FarEnd]bool{}}
}

// Slots returns how many slots there are.
func (t *Table) Slots() int { return t.d.Layout.Channels }

// Clear zeroes a slot that nobody uses. It is called before peers learn of the end that is to have it.
func (t *Table) Clear(slot int) error {
	var zero [kernels.ChannelBytes]byte
	t.status(slot).Abort.Store(0)
	t.status(slot).Error.Store(kernels.OK)
	return t.d.Domain.Copy(cuda.Addr(t.d.Area.Base())+cuda.Addr(t.d.Layout.Channel(slot)), zero[:], true)
}

// status returns the status line of a slot.
func (t *Table) status(slot int) *kernels.Status { return t.d.Status(t.first + slot) }

// stream returns the device's stream behind s; nil if s is nil. Work queued there needs no turn of the communicator.
func (t *Table) stream(s *engine.Stream) (*gpu.Stream, error) {
	on := gpu.StreamOf(s)
	switch {
	case s == nil:
		return nil, nil
	case on == nil:
		return nil, fmt.Errorf("memory on %v, and the stream is on %v: %w", t.d.Domain.Context.Device(), s.Device(),
			fault.ErrArgument)
	}
	return on, t.c.CheckDevice(s.Device())
}

// StatusLines implements gpu.Client.
func (t *Table) StatusLines() int { return t.Slots() }

// PlaceLines implements gpu.Client.
func (t *Table) PlaceLines(first int) { t.first = first }

// Stuck implements gpu.Client.
func (t *Table) Stuck() int { return -1 }

// Fatal implements gpu.Client.
func (t *Table) Fatal() *fault.Error { return nil }

// Collect implements gpu.Client: streams return the errors of ends.
func (t *Table) Collect() error { return nil }

// add makes e end with the device.
func (t *Table) add(e *End) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[e] = true
	if t.c.Broken() != nil { // then Abort may have missed it
		e.status.Abort.Store(1)
	}
}

// remove reports whether e was open.
func (t *Table) remove(e *End) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.open[e]
	delete(t.open, e)
	return was
}

func (t *Table) all() (all []*End) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := range t.open {
		all = append(all, e)
	}
	return all
}

// Abort implements gpu.Client.
func (t *Table) Abort() {
	for _, e := range t.all() {
		e.status.Abort.Store(1)
	}
}

// Watch implements gpu.Client.
func (t *Table) Watch() {
	for _, e := range t.all() {
		e.watch()
	}
}

// Close implements gpu.Client.
func (t *Table) Close() error {
	t.mu.Lock()
	far := slices.Collect(maps.Keys(t.far))
	t.mu.Unlock()
	for _, e := range far {
		e.release()
	}
	var errs []error
	for _, shares := range []bool{true, false} { // those whose signals others share come last
		for _, e := range t.all() {
			if e.shares == shares {
				errs = append(errs, e.release())
			}
		}
	}
	return errors.Join(errs...)
}
