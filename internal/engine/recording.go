package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Recorder takes the operations of a communicator's view instead of their being run: for groups and for capture.
type Recorder interface {
	Record(c *Comm, w team.Work) error
}

// Recording is a group or a capture that a communicator is open for. Meanwhile it takes collectives by way of views
// with a Recorder only: one that is called on the communicator itself would run at once, and be missing from what is
// recorded. It is refused, whatever goroutine it comes from, and the group or capture with it, since the peers may have
// recorded it. Messages are independent of it. A call that could not be recorded fails the whole as well, whether its
// caller looks at its error or not.
type Recording struct {
	c    *Comm
	what string // for people
	r    Recorder

	mu   sync.Mutex
	call team.Work // the first one that failed, for what the peers wait for it with
	err  error     // its error
}

// Record opens the communicator for what, a function that calls its caller's with a view whose Recorder is the
// recording; r takes what is recorded. End closes it. In a view that records already it is part of that recording.
func (v *View) Record(what string, r Recorder) (*Recording, error) {
	k := &Recording{c: v.Comm, what: what, r: r}
	for v.Recorder == nil && !v.Comm.recording.CompareAndSwap(nil, k) {
		if err := v.Comm.Barred(&team.Work{}, what); err != nil { // else the other one has just ended
			return nil, err
		}
	}
	return k, nil
}

// End closes the recording. It returns the first call that failed, the zero Work if it is not known, and why.
func (k *Recording) End() (team.Work, error) {
	k.c.recording.CompareAndSwap(k, nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.call, k.err
}

// Record implements Recorder.
func (k *Recording) Record(c *Comm, w team.Work) error {
	err := k.r.Record(c, w)
	if err != nil {
		k.failed(&w, Cause(err))
	}
	return err
}

// On is the view with another stream, nil for none. What is recorded runs on the recording's.
func (v View) On(s *Stream) *View {
	if k, ok := v.Recorder.(*Recording); ok && s != v.Stream {
		v.Recorder = elsewhere{k}
	}
	v.Stream = s
	return &v
}

// elsewhere refuses what is to be recorded on another stream.
type elsewhere struct{ k *Recording }

// Record implements Recorder.
func (e elsewhere) Record(c *Comm, w team.Work) error {
	err := fmt.Errorf("on another stream than that on which %s was called, where all that it records runs: %w", e.k.what,
		fault.ErrArgument)
	e.k.failed(&w, err)
	return c.LocalError(w.Kind.String(), err)
}

func (k *Recording) failed(w *team.Work, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.call, k.err = team.Work{Kind: w.Kind, Kernel: w.Kernel}, err
	}
}

// FailRecording fails what v records, with call, because of err.
func (v *View) FailRecording(call team.Work, err error) {
	switch k := v.Recorder.(type) {
	case *Recording:
		k.failed(&call, Cause(err))
	case elsewhere:
		k.k.failed(&call, Cause(err))
	}
}

// Barred is why the communicator takes no collective now, w or what op names, or nil.
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
	k.failed(w, err)
	return c.LocalError(op, err)
}

// Cause is an error of a local call without where it happened, which the operation will say.
func Cause(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Err
	}
	return err
}
