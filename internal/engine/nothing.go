package engine

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// What a program hands over that is not there, a nil or a zero value, is an error of the call that it is handed to.

// NilError is the error of a call with a nil or zero value of a type, and says where such come from.
func NilError(name, from string) error {
	return &fault.Error{Op: name, Rank: -1, Peer: -1,
		Err: fmt.Errorf("it is nil or the zero value: %s: %w", from, fault.ErrArgument)}
}

// NoView is the view of a nil or zero communicator: without ranks, and broken from the start. It counts as recording,
// so that a call on a communicator that is there does not look for it.
var NoView = &View{Comm: noComm()}

func noComm() *Comm {
	c := &Comm{rank: -1}
	e := NilError("communicator", "it comes from Open, Main, Run, Local, Dup or Split, and is nil where Split was given a "+
		"negative color").(*fault.Error)
	c.broken.Store(e)
	c.recording.Store(&Recording{})
	c.gpuWhy = e
	return c
}

// noStream is the stream that a zero Stream stands for.
var noStream = &Stream{dev: hw.Host, closed: true}

var errNoStream = NilError("stream", "NewStream and StreamFrom make one")

// OrNone is s, or if it is nil a stream that takes nothing.
func (s *Stream) OrNone() *Stream {
	if s == nil {
		return noStream
	}
	return s
}

// ErrCommClosed and ErrStreamClosed are what is wrong with calls that come too late.
var (
	ErrCommClosed = fmt.Errorf("the communicator has been closed, by its Close; nothing can be called after: %w",
		fault.ErrClosed)
	ErrStreamClosed = fmt.Errorf("the stream has been closed, by its Close; NewStream makes another: %w", fault.ErrClosed)
)

// ErrStreamBusy is what is wrong with closing a stream too early.
var ErrStreamBusy = fmt.Errorf("operations are queued on it (Sync waits for them): %w", fault.ErrBusy)

// Context is ctx, or if that is nil a context that has ended, because it is: calls refuse what they are to do.
func Context(ctx context.Context) context.Context {
	if ctx == nil {
		return nilContext{context.Background()}
	}
	return ctx
}

type nilContext struct{ context.Context }

var (
	// ErrNilContext is what is wrong with a nil context.
	ErrNilContext = fmt.Errorf("the context is nil (context.Background() is one without an end): %w", fault.ErrArgument)

	over = make(chan struct{})
)

func init() { close(over) }

// Done and Err are those of a context that has ended.
func (nilContext) Done() <-chan struct{} { return over }

func (nilContext) Err() error { return ErrNilContext }
