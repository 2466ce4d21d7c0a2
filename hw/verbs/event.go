//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"context"
	"fmt"
	"syscall"
)

// EventType is enum ibv_event_type.
type EventType int

// The events of interest.
const (
	EventCQ           EventType = 0 // a completion queue broke: it was given more than it holds
	EventQPFatal      EventType = 1
	EventQPRequest    EventType = 2
	EventQPAccess     EventType = 3 // a peer asked for what it may not
	EventDevice       EventType = 8 // the device broke
	EventPortActive   EventType = 9
	EventPortDown     EventType = 10
	EventSRQLimit     EventType = 15 // see PD.CreateSRQ
	EventLastReceived EventType = 16 // a queue pair that has failed takes no more of its shared receives
	EventGIDs         EventType = 18 // a port's table of GIDs has changed
)

// Event is something that happened to a device, and to what.
type Event struct {
	Type   EventType
	Text   string // libibverbs' words
	Device string
	Port   int    // of a port's events
	QP     uint32 // of a queue pair's: its number
}

// String is like "rxe0: port error: port 1".
func (e Event) String() string {
	s := e.Device + ": " + e.Text
	if e.Port != 0 {
		s += fmt.Sprintf(": port %d", e.Port)
	}
	if e.QP != 0 {
		s += fmt.Sprintf(": queue pair %d", e.QP)
	}
	return s
}

// NextEvent blocks until something happens to the device, or until ctx ends, and then returns its cause. Events wait for it in
// order. One goroutine waits at a time; others wait for their turn. (ibv_get_async_event)
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

// Counters reads a port's counters by name: those of the InfiniBand standard, and the driver's own. (sysfs)
func (d *Device) Counters(port int) (map[string]uint64, error) {
	if _, err := d.Port(port); err != nil {
		return nil, err
	}
	return counters(d.sysfs, port)
}
