package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Recorder records the operations of a communicator's view, which do not run then. Groups and captures use it. It copies
// *w and w.Other, which are the caller's again when Record returns.
type Recorder interface {
	Record(c *Comm, w *team.Work) error
}

// Recording is the group or capture that a communicator is recording. Until its end the communicator takes collectives
// only from views with a Recorder: one that is called on the communicator itself would run at once, and be missing from
// what is recorded. Such a call is refused, whatever goroutine makes it, and the recording fails, because the peers may
// have recorded the call. Messages are independent of it. A call that could not be recorded also fails the recording,
// even if its caller ignores the error.
type Recording struct {
	c    *Comm
	what string // for people
	r    Recorder

	mu   sync.Mutex
	call Called // the first call that failed
	err  error  // its error
}

// Called says what the peers of a recorded call wait with.
type Called struct {
	Kind   team.OpKind
	Kernel team.Kernel
}

// Record begins recording k, which is zero, for what, a function that passes its caller's function a view whose Recorder
// is k; r gets the operations. End ends it. On a view that already records, it becomes part of that recording.
func (v *View) Record(k *Recording, what string, r Recorder) error {
	k.c, k.what, k.r = v.Comm, what, r
	for v.Recorder == nil && !v.Comm.recording.CompareAndSwap(nil, k) {
		if err := v.Comm.Barred(&team.Work{}, what); err != nil { // nil: the other recording has just ended
			return err
		}
	}
	return nil
}

// End ends the recording. It returns the first call that failed, the zero Called if that is not known, and why.
func (k *Recording) End() (Called, error) {
	k.c.recording.CompareAndSwap(k, nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.call, k.err
}

// Record implements Recorder.
func (k *Recording) Record(c *Comm, w *team.Work) error {
	err := k.r.Record(c, w)
	if err != nil {
		k.failed(Called{w.Kind, w.Kernel}, Cause(err))
	}
	return err
}

// On is the view with another stream, or none if s is nil. Recorded operations run on the recording's stream.
func (v View) On(s *Stream) *View {
	if k, ok := v.Recorder.(*Recording); ok && s != v.Stream {
		v.Recorder = elsewhere{k}
	}
	v.Stream = s
	return &v
}

// elsewhere is a Recorder that refuses operations because they are on another stream than the recording.
type elsewhere struct{ k *Recording }

// Record implements Recorder.
func (e elsewhere) Record(c *Comm, w *team.Work) error {
	err := fmt.Errorf("on another stream than that on which %s was called, where all that it records runs: %w", e.k.what,
		fault.ErrArgument)
	e.k.failed(Called{w.Kind, w.Kernel}, err)
	return c.LocalError(w.Kind.String(), err)
}

func (k *Recording) failed(call Called, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.call, k.err = call, err
	}
}

// FailRecording fails the recording of v, with call, because of err.
func (v *View) FailRecording(call Called, err error) {
	switch k := v.Recorder.(type) {
	case *Recording:
		k.failed(call, Cause(err))
	case elsewhere:
		k.k.failed(call, Cause(err))
	}
}

// Barred returns why the communicator takes no collective now, or nil. The collective is w, or the one that op names.
func (c *Comm) Barred(w *team.Work, op string) error {
	k := c.recording.Load()
	switch {
	case k == nil:
		return nil
	case c.size == 0:
		return c.Err()
	}
	err := fmt.Errorf("%s on the communicator whose collectives %s is recording: call it on the *Comm that %s passes to "+
		"its function, or after that: %w", op, k.what, k.what, fault.ErrArgument)
	k.failed(Called{w.Kind, w.Kernel}, err)
	return c.LocalError(op, err)
}

// Cause strips from the error of a local call where it happened, because the operation adds that.
func Cause(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Err
	}
	return err
}
