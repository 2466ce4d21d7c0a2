package frame

import (
	"fmt"
	"unsafe"
)

// Sink receives frames. Its methods are called by one goroutine at a time, and may call Put, Queue, Withdraw and
// WithdrawWrites alone, of any connection.
type Sink interface {
	// Place returns where the payload of a frame goes that has one. If not ok, it is read and dropped. An error ends the
	// connection.
	Place(h Header) (p unsafe.Pointer, ok bool, err error)
	// Landed is called once all of a frame is where Place said.
	Landed(h Header)
	// Told is called for every frame without a payload. An error ends the connection.
	Told(h Header) error
}

// Refused is the error of a Sink about a frame that it does not take.
func Refused(h Header, why string) error {
	switch h.Kind {
	case Write:
		return fmt.Errorf("%w: %d bytes at %d of slot %d, key %d, of communicator %#x: %s", ErrFrame, h.Length, h.Offset, h.Place,
			h.Seq, h.Comm, why)
	case Call:
		return fmt.Errorf("%w: a call of %d bytes of communicator %#x: %s", ErrFrame, h.Length, h.Comm, why)
	}
	return fmt.Errorf("%w: %d bytes for place %d of communicator %#x, sequence %d: %s", ErrFrame, h.Length, h.Place, h.Comm,
		h.Seq, why)
}
