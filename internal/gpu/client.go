package gpu

import (
	"context"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Client is what else than collectives a communicator does on its device: messages, or channels and windows. Its
// kernels have status lines of its own, which begin with the number that it was given.
type Client interface {
	// StatusLines is how many status lines it needs, and PlaceLines says the number of its first one, once the page is
	// there.
	StatusLines() int
	PlaceLines(first int)

	// Abort ends the waits of its kernels: the device is locked.
	Abort()
	// Watch is the watchdog's look at what is its own.
	Watch()
	// Stuck is a peer that has closed its communicator while something queued still waits for it, or -1.
	Stuck() int
	// Fatal is what has broken the communicator, as its status lines say, or nil: the device is locked.
	Fatal() *fault.Error
	// Collect takes what its kernels have said in general, for the Sync of any stream that the communicator has queued on.
	Collect() error
	// Close gives up what it has on the device: all that was queued has ended.
	Close() error
}

// ClientMaker is an attachment that is a client of its communicator's device.
type ClientMaker interface{ OnDevice(d *Device) Client }

// StreamUser is what queues on a stream of a device: a communicator, or one end of a channel or window.
type StreamUser interface {
	// Comm is whose error it is that Collect returns, or nil for one that its own calls return as well.
	Comm() *engine.Comm
	// Collect takes the errors that no Sync has returned.
	Collect() []error
	// FailDevice says that the device behind the stream has ceased to work.
	FailDevice(op string, err error)
	// Closed says that the stream closes, with nothing of the user's queued.
	Closed(s *Stream)
}

// GraphPart is a client's part of a device's graph: messages.
type GraphPart interface {
	// Prepare comes before the capture.
	Prepare(ctx context.Context) error
	// Capture queues w on cu, which is being captured, and returns what LastOp tells of it.
	Capture(cu *cuda.Stream, w *team.Work) ([]engine.OpInfo, error)
	// GiveUp gives back what a graph has that is not made after all.
	GiveUp() error

	// Lock has nothing else come between what follows and Unlock: fault.ErrClosed after the communicator.
	Lock() error
	Unlock()
	// Number takes n sequence numbers: those after the one that it returns.
	Number(n uint64) uint64
	// Launch queues g on cu, s's, in the order of what it is part of. Locked.
	Launch(g *Graph, s *Stream, cu *cuda.Stream) error
	// Collect takes what the kernels have said.
	Collect() error
	// Close is for the graph's end.
	Close() error
}
