//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"context"
	"fmt"
	"syscall"
)

// NextEvent blocks until something happens to the device, and returns it. If ctx ends first, it returns its cause.
// Events queue up in order until they are taken. One goroutine waits at a time; others wait for their turn.
// (ibv_get_async_event)
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	event := Event{Device: d.name}
	var result error
	err := d.async.wait(ctx, func() bool {
		var kind, port C.int
		var qp C.uint32_t
		code, err := d.use(func() C.int { return C.ubv_get_async(d.context, &kind, &port, &qp) })
		if code == C.int(syscall.EAGAIN) && err == nil {
			return false
		}
		if result = err; err == nil {
			result = d.check("ibv_get_async_event", "", code)
		}
		event.Type, event.Port, event.QP = EventType(kind), int(port), uint32(qp)
		return true
	})
	if err == nil {
		err = result
	}
	if err != nil {
		return Event{}, fmt.Errorf("events of %s: %w", d.name, err)
	}
	event.Text = C.GoString(C.ubv_event_name(C.int(event.Type)))
	return event, nil
}

// Counters reads a port's counters by name: those of the InfiniBand standard and the driver's own. port_xmit_data and
// port_rcv_data count units of 4 bytes; the driver's own may be some 10 ms old. Counters that cannot be read are left
// out. (sysfs)
func (d *Device) Counters(port int) (map[string]uint64, error) {
	if _, err := d.Port(port); err != nil {
		return nil, err
	}
	return counters(d.sysfs, port)
}
