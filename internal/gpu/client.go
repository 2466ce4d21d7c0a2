package gpu

import (
	"context"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Client is a part of a communicator that uses its device for something other than collectives: messages, or channels
// and windows. Its kernels have their own status lines, which begin with the number that PlaceLines gave it.
type Client interface {
	// StatusLines returns how many status lines it needs. PlaceLines tells it the number of the first one; it is called
	// before the status page exists.
	StatusLines() int
	PlaceLines(first int)

	// Abort ends the waits of its kernels. The caller holds the device's lock.
	Abort()
	// Watch is called at each tick of the watchdog, for the client's own checks.
	Watch()
	// Stuck returns a peer that has closed its communicator while queued work still waits for it, or -1.
	Stuck() int
	// Fatal returns the error in its status lines that has broken the communicator, or nil. The caller holds the
	// device's lock.
	Fatal() *fault.Error
	// Collect returns the errors of its kernels that belong to no stream of their own. Sync of any stream that the
	// communicator has queued on calls it.
	Collect() error
	// Close releases what it has on the device. All queued work has ended.
	Close() error
}

// ClientMaker is an attachment that is a client of its communicator's device.
type ClientMaker interface{ OnDevice(d *Device) Client }

// StreamUser queues work on a stream of a device: a communicator, or one end of a channel or window.
type StreamUser interface {
	// Comm returns the communicator that Collect's errors are about, or nil if the user's own calls return them as
	// well.
	Comm() *engine.Comm
	// Collect returns the errors that no Sync has returned yet.
	Collect() []error
	// FailDevice says that the stream's device has stopped working.
	FailDevice(op string, err error)
	// Closed says that the stream closes, and that nothing of this user is queued on it.
	Closed(s *Stream)
}

// GraphPart is a client's part of a device's graph, for its messages.
type GraphPart interface {
	// Prepare is called before the capture.
	Prepare(ctx context.Context) error
	// Capture queues w on cu, which is being captured, and returns what LastOp reports of it.
	Capture(cu *cuda.Stream, w *team.Work) ([]engine.OpInfo, error)
	// GiveUp releases what it has if the graph is not made after all.
	GiveUp() error

	// Lock keeps other operations out until Unlock. It returns fault.ErrClosed after the communicator has closed.
	Lock() error
	Unlock()
	// Number takes n sequence numbers: the n that follow its result.
	Number(n uint64) uint64
	// Launch queues g on cu, which is s's stream, in the order of its client's operations. The caller holds Lock.
	Launch(g *Graph, s *Stream, cu *cuda.Stream) error
	// Collect returns the errors of its kernels.
	Collect() error
	// Close is called when the graph ends.
	Close() error
}
