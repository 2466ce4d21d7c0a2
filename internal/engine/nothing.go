package engine

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// A nil or zero value that a program passes is an error of the call that gets it.

// NilError is the error of a call on a nil or zero value of the named type; from says where valid ones come from.
func NilError(name, from string) error {
	return &fault.Error{Op: name, Rank: -1, Peer: -1,
		Err: fmt.Errorf("it is nil or the zero value: %s: %w", from, fault.ErrArgument)}
}

// NoView is the view of a nil or zero communicator: it has no ranks, and is broken from the start. It counts as
// recording, so that calls on valid communicators need no extra check.
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

// OrNone returns s or, if s is nil, a stream that refuses everything.
func (s *Stream) OrNone() *Stream {
	if s == nil {
		return noStream
	}
	return s
}

// ErrCommClosed and ErrStreamClosed are the errors of calls after Close.
var (
	ErrCommClosed = fmt.Errorf("the communicator has been closed, by its Close; nothing can be called after: %w",
		fault.ErrClosed)
	ErrStreamClosed = fmt.Errorf("the stream has been closed, by its Close; NewStream makes another: %w", fault.ErrClosed)
)

// ErrStreamBusy is the error of closing a stream that has queued operations.
var ErrStreamBusy = fmt.Errorf("operations are queued on it (Sync waits for them): %w", fault.ErrBusy)

// Context returns ctx or, if it is nil, a context that has ended with ErrNilContext, so that calls refuse it.
func Context(ctx context.Context) context.Context {
	if ctx == nil {
		return nilContext{context.Background()}
	}
	return ctx
}

type nilContext struct{ context.Context }

var (
	// ErrNilContext is the error of a nil context.
	ErrNilContext = fmt.Errorf("the context is nil (context.Background() is one without an end): %w", fault.ErrArgument)

	over = make(chan struct{})
)

func init() { close(over) }

// Done and Err behave as for a context that has ended.
func (nilContext) Done() <-chan struct{} { return over }

func (nilContext) Err() error { return ErrNilContext }
