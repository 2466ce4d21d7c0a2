package frame

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// Conn is a data connection: TCP's, or a queue pair. Its methods are local and safe for concurrent use. None waits for
// the peer but Drop, and Close, of a queue pair.
type Conn interface {
	// Put sends a frame, or a put or write of any length, as far as it can go at once, and queues the rest. p is in use
	// until sent is raised by 1, or Drop or Close has returned. sent is the same for all puts of a communicator, or nil.
	// After Close, Put does nothing.
	Put(h Header, p unsafe.Pointer, sent *atomic.Uint64)
	// Queue is Put, but nothing leaves before the next Put or Flush: then it does together with that.
	Queue(h Header, p unsafe.Pointer, sent *atomic.Uint64)
	// Skip counts a put of a communicator that is not sent, once all its puts before it are.
	Skip(comm uint64, sent *atomic.Uint64)
	// Flush sends what is queued as far as it can go.
	Flush()
	// Queued is how many puts and frames have not left as a whole.
	Queued() int

	// Receive handles what has arrived, and reports whether there was anything. It does nothing while another goroutine
	// receives. Once there is an error, every call returns it.
	Receive() (moved bool, err error)
	// Drain waits until no other goroutine receives, and then receives all that has arrived.
	Drain() error
	// Stop runs f while nothing is received. If f says so of the current frame's header, the rest of that frame is dropped.
	Stop(f func(h Header) (drop bool))

	// Drop forgets the puts of a communicator. Once it returns, their memory is not read any more, and all count as sent.
	Drop(comm uint64)
	// Withdraw forgets the communicator's puts to a place, up to a sequence, as far as they have not left. What is put
	// afterwards is sent after the last frame of these.
	Withdraw(comm uint64, place uint32, seq uint64)
	// WithdrawWrites forgets a communicator's writes to a key. Once it returns, their memory is not read any more, and all
	// count as sent.
	WithdrawWrites(comm uint64, slot uint32, key uint64)

	// Load returns how many bytes the peer has not acknowledged, of those that left and those queued, and how many it has.
	Load() (waiting int, acked uint64)
	// Unanswered reports whether something has been sent for which nothing has come back, and how long ago the last
	// acknowledgement came.
	Unanswered() (waits bool, heard time.Duration)
	// Look asks the kernel what Add adds as retries. Add adds what the connection has carried to t. Both may be called at
	// any time, also after Close.
	Look()
	Add(t *transport.Traffic)

	// Shut says that nothing more is sent: after all data, the peer finds the end of the stream.
	Shut()
	// Close ends the connection. Once it returns, it uses no memory of puts and places. It may be called again.
	Close()
}
