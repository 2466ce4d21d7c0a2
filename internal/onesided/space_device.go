package onesided

import (
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpuend"
)

var _ gpu.ClientMaker = (*Space)(nil)

// OnDevice implements gpu.ClientMaker.
func (sp *Space) OnDevice(d *gpu.Device) gpu.Client {
	sp.device = gpuend.NewTable(d)
	return sp.device
}

// noDevice returns why this rank cannot use device memory, or nil.
func (sp *Space) noDevice() error {
	if gpu.DeviceOf(sp.c) == nil {
		return sp.c.WhyNoGPU()
	}
	return nil
}

// noDeviceOf returns why this rank cannot use the device of a rank of its host, or nil.
func (sp *Space) noDeviceOf(rank int) error {
	if gpu.DeviceOf(sp.c) == nil || !sp.c.DevicePeer(sp.local(rank)).HasDevice() {
		return sp.c.WhyNoGPU()
	}
	return nil
}

// deviceSlots returns how many slots, from the first one, can hold ends on a device.
func (sp *Space) deviceSlots() int {
	if sp.device == nil {
		return 0
	}
	return sp.device.Slots()
}
