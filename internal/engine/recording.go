package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Recorder records the operations of a communicator's view, which do not run then. Groups and captures use it.
type Recorder interface {
	// Begin returns an empty Work for the caller to fill and pass to Record. A recording makes other goroutines wait
	// from Begin to Record.
	Begin() *team.Work
	// Record records w, which is Begin's. It copies w.Other, which is the caller's again when Record returns; w is not.
	Record(c *Comm, w *team.Work) error
}

// Recording is the group or capture that a communicator is recording. Until its end the communicator takes collectives
// only from views with a Recorder: one that is called on the communicator itself would run at once, and be missing from
// what is recorded. Such a call is refused, whatever goroutine makes it, and the recording fails, because the peers may
// have recorded the call. Messages are independent of it. A call that could not be recorded also fails the recording,
// even if its caller ignores the error.
//
// A Recording is used once, because its view stays known to the program, whose later calls on it are refused. So it is
// small: what it needs until its end is in Recorded, which can be used again.
type Recording struct {
	mu sync.Mutex // held from Begin to Record
	to *Recorded  // nil: it has ended
}

// Recorded is what a Recording needs until its end.
type Recorded struct {
	c     *Comm
	what  string // for people
	r     Recorder
	first *failedCall // nil: none
}

// failedCall is a call that could not be recorded, or was not.
type failedCall struct {
	call Called
	err  error
}

// Called says what the peers of a recorded call wait with.
type Called struct {
	Kind   team.OpKind
	Kernel team.Kernel
}

// Record begins recording k, which is zero, for what, a function that passes its caller's function a view whose Recorder
// is k; r gets the operations, and to is k's until End. On a view that already records, it becomes part of that
// recording.
func (v *View) Record(k *Recording, to *Recorded, what string, r Recorder) error {
	*to = Recorded{c: v.Comm, what: what, r: r}
	k.to = to
	for v.Recorder == nil && !v.Comm.recording.CompareAndSwap(nil, k) {
		if err := v.Comm.Barred(&team.Work{}, what); err != nil { // nil: the other recording has just ended
			return err
		}
	}
	return nil
}

// End ends the recording. It returns the first call that failed, the zero Called if that is not known, and why.
func (r *Recording) End() (Called, error) {
	r.mu.Lock()
	to := r.to
	r.to = nil
	r.mu.Unlock()
	to.c.recording.CompareAndSwap(r, nil)
	if to.first == nil {
		return Called{}, nil
	}
	return to.first.call, to.first.err
}

// Enter makes other goroutines wait until Leave, and returns where the operations go, or nil if the recording has ended.
func (r *Recording) Enter() Recorder {
	r.mu.Lock()
	if r.to == nil {
		return nil
	}
	return r.to.r
}

// Leave ends what Enter began.
func (r *Recording) Leave() { r.mu.Unlock() }

// Begin implements Recorder.
func (r *Recording) Begin() *team.Work {
	if outer := r.Enter(); outer != nil {
		return outer.Begin()
	}
	return new(team.Work)
}

// Record implements Recorder.
func (r *Recording) Record(c *Comm, w *team.Work) error {
	defer r.Leave()
	if r.to == nil {
		return c.LocalError(w.Kind.String(), ErrRecorded)
	}
	call := Called{w.Kind, w.Kernel}
	err := r.to.r.Record(c, w)
	if err != nil {
		r.to.failed(call, Cause(err))
	}
	return err
}

// ErrRecorded is the error of a call on the view of a recording that has ended.
var ErrRecorded = fmt.Errorf("on the *Comm of a Group or Capture that has ended (use the one that it was called on): %w",
	fault.ErrClosed)

// On is the view with another stream, or none if s is nil. Recorded operations run on the recording's stream.
func (v View) On(s *Stream) *View {
	if k, ok := v.Recorder.(*Recording); ok && s != v.Stream {
		v.Recorder = otherStream{k}
	}
	v.Stream = s
	return &v
}

// otherStream is a Recorder that refuses operations because they are on another stream than the recording.
type otherStream struct{ k *Recording }

// Begin implements Recorder.
func (e otherStream) Begin() *team.Work { return new(team.Work) }

// Record implements Recorder.
func (e otherStream) Record(c *Comm, w *team.Work) error {
	e.k.mu.Lock()
	defer e.k.mu.Unlock()
	if e.k.to == nil {
		return c.LocalError(w.Kind.String(), ErrRecorded)
	}
	err := fmt.Errorf("on another stream than that on which %s was called, where all that it records runs: %w", e.k.to.what,
		fault.ErrArgument)
	e.k.to.failed(Called{w.Kind, w.Kernel}, err)
	return c.LocalError(w.Kind.String(), err)
}

// failed fails the recording with call, because of err. The caller holds the Recording's lock.
func (to *Recorded) failed(call Called, err error) {
	if to.first == nil {
		to.first = &failedCall{call, err}
	}
}

// fail is failed for callers without the lock. It returns false if the recording has ended.
func (r *Recording) fail(call Called, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to == nil {
		return false
	}
	r.to.failed(call, err)
	return true
}

// FailRecording fails the recording of v, with call, because of err.
func (v *View) FailRecording(call Called, err error) {
	switch k := v.Recorder.(type) {
	case *Recording:
		k.fail(call, Cause(err))
	case otherStream:
		k.k.fail(call, Cause(err))
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
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.to == nil { // it has just ended
		return nil
	}
	what := k.to.what
	err := fmt.Errorf("on the communicator whose collectives %s is recording: call it on the *Comm that %s passes to its "+
		"function, or after that: %w", what, what, fault.ErrArgument)
	k.to.failed(Called{w.Kind, w.Kernel}, err)
	return c.LocalError(op, err)
}

// Cause strips from the error of a local call where it happened, because the operation adds that.
func Cause(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Err
	}
	return err
}
