package engine

import (
	"context"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// client is what else than collectives a communicator does on its device: messages, or channels and windows. Its kernels
// have status lines of its own, which begin with the number that it was given.
type client interface {
	// lines is how many status lines it needs, and begin the number of its first one, once the page is there.
	lines() int
	begin(first int)

	// abort ends the waits of its kernels: the device is locked.
	abort()
	// setTimeout changes the deadline of kernels that are launched from now on.
	setTimeout(nanoseconds uint64)
	// watch is the watchdog's look at what is its own.
	watch()
	// stuck is a peer that has closed its communicator while something queued still waits for it, or -1.
	stuck() int
	// fatal is what has broken the communicator, as its status lines say, or nil: the device is locked.
	fatal() *fault.Error
	// collect takes what its kernels have said in general, for the Sync of any stream that the communicator has queued on.
	collect() error
	// close gives up what it has on the device: all that was queued has ended.
	close() error
}

// clientMaker is an attachment that is a client of its communicator's device.
type clientMaker interface{ onDevice(d *device) client }

// streamUser is what queues on a stream of a device: a communicator, or one end of a channel or window.
type streamUser interface {
	// comm is whose error it is that collect returns, or nil for one that its own calls return as well.
	comm() *Comm
	// collect takes the errors that no Sync has returned.
	collect() []error
	// broke says that the device behind the stream has ceased to work.
	broke(op string, err error)
	// closed says that the stream closes, with nothing of the user's queued.
	closed(s *gpuStream)
}

// graphPart is a client's part of a device's graph: messages.
type graphPart interface {
	// prepare comes before the capture.
	prepare(ctx context.Context) error
	// capture queues w on cu, which is being captured, and returns what LastOp tells of it.
	capture(cu *cuda.Stream, w *team.Work) ([]OpInfo, error)
	// giveUp gives back what a graph has that is not made after all.
	giveUp() error

	// lock has nothing else come between what follows and unlock: fault.ErrClosed after the communicator.
	lock() error
	unlock()
	// number takes n sequence numbers: those after the one that it returns.
	number(n uint64) uint64
	// launch queues g on cu, s's, in the order of what it is part of. Locked.
	launch(g *DeviceGraph, s *gpuStream, cu *cuda.Stream) error
	// collect takes what the kernels have said.
	collect() error
	// close is for the graph's end.
	close() error
}
