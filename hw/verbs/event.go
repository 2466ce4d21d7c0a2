package verbs

import "fmt"

// EventType is enum ibv_event_type.
type EventType int

// The events that matter here.
const (
	EventCQ           EventType = 0 // a completion queue overflowed and broke
	EventQPFatal      EventType = 1
	EventQPRequest    EventType = 2
	EventQPAccess     EventType = 3 // a peer asked for access that it does not have
	EventDevice       EventType = 8 // the device broke
	EventPortActive   EventType = 9
	EventPortDown     EventType = 10
	EventSRQLimit     EventType = 15 // see PD.CreateSRQ
	EventLastReceived EventType = 16 // a queue pair that has failed takes no more of its shared receives
	EventGIDs         EventType = 18 // a port's table of GIDs has changed
)

// Event is something that happened to a device, a port or a queue pair.
type Event struct {
	Type   EventType
	Text   string // libibverbs' words
	Device string
	Port   int    // for events of a port
	QP     uint32 // for events of a queue pair: its number
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
