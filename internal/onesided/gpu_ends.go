package onesided

import (
	"errors"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// gpuEnds are the ends of channels and windows over device memory. Each uses the status line of its slot. It implements
// gpu.Client.
type gpuEnds struct {
	d     *gpu.Device
	first int // the first status line

	mu   sync.Mutex
	open map[*gpuEnd]bool
}

var _ gpu.ClientMaker = (*Space)(nil)

// OnDevice implements gpu.ClientMaker.
func (sp *Space) OnDevice(d *gpu.Device) gpu.Client {
	sp.gpu = &gpuEnds{d: d, open: map[*gpuEnd]bool{}}
	return sp.gpu
}

// noDevice returns why this rank cannot use device memory, or nil.
func (sp *Space) noDevice() error {
	if gpu.DeviceOf(sp.c) == nil {
		return sp.c.WhyNoGPU()
	}
	return nil
}

// noDeviceOf returns why this rank cannot use a peer's device, or nil.
func (sp *Space) noDeviceOf(rank int) error {
	if gpu.DeviceOf(sp.c) == nil || !sp.c.DevicePeer(rank).HasDevice() {
		return sp.c.WhyNoGPU()
	}
	return nil
}

func (es *gpuEnds) StatusLines() int     { return es.d.Layout.Channels }
func (es *gpuEnds) PlaceLines(first int) { es.first = first }
func (es *gpuEnds) Stuck() int           { return -1 }
func (es *gpuEnds) Fatal() *fault.Error  { return nil }
func (es *gpuEnds) Collect() error       { return nil }

// status returns the status line of a slot.
func (es *gpuEnds) status(slot int) *kernels.Status { return es.d.Status(es.first + slot) }

// clear zeroes an end that nobody uses, in the device area.
func (es *gpuEnds) clear(slot int) error {
	var zero [kernels.ChannelBytes]byte
	es.status(slot).Abort.Store(0)
	es.status(slot).Error.Store(kernels.OK)
	return es.d.Domain.Copy(cuda.Addr(es.d.Area.Base())+cuda.Addr(es.d.Layout.Channel(slot)), zero[:], true)
}

// add makes g end with the device.
func (es *gpuEnds) add(g *gpuEnd) {
	es.mu.Lock()
	defer es.mu.Unlock()
	es.open[g] = true
	if g.c.Broken() != nil { // then Abort may have missed it
		g.status.Abort.Store(1)
	}
}

// remove reports whether g was open.
func (es *gpuEnds) remove(g *gpuEnd) bool {
	es.mu.Lock()
	defer es.mu.Unlock()
	was := es.open[g]
	delete(es.open, g)
	return was
}

func (es *gpuEnds) all() (all []*gpuEnd) {
	es.mu.Lock()
	defer es.mu.Unlock()
	for g := range es.open {
		all = append(all, g)
	}
	return all
}

func (es *gpuEnds) Abort() {
	for _, g := range es.all() {
		g.status.Abort.Store(1)
	}
}

func (es *gpuEnds) Watch() {
	for _, g := range es.all() {
		g.watch()
	}
}

func (es *gpuEnds) Close() error {
	var errs []error
	for _, g := range es.all() {
		errs = append(errs, g.release())
	}
	return errors.Join(errs...)
}
