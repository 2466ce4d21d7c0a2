package gpu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Stream is the part of an engine.Stream that is a stream of a device: the queue is the driver's. Implements
// engine.DeviceStream.
type Stream struct {
	s        *engine.Stream // which keeps the errors
	ctx      *cuda.Context  // to close with the stream, or nil
	Driver   *cuda.Stream
	borrowed bool

	using sync.RWMutex // held for reading while Driver is used, for writing to close it
	gone  bool         // Driver is closed

	taken atomic.Int32 // the room that the kernel takes that was queued last: see Follows

	mu    sync.Mutex
	users []StreamUser // that have queued on it: communicators first, each kind in the order of first use
}

// StreamOf is the part of s that is a stream of a device; nil if it is on the host, or nil.
func StreamOf(s *engine.Stream) *Stream {
	if s == nil {
		return nil
	}
	g, _ := s.OnDevice().(*Stream)
	return g
}

// streamOn makes g, which has the driver's stream, the queue of a Stream of d.
func streamOn(d hw.Device, g *Stream) *Stream {
	g.s = engine.StreamOn(d, g)
	return g
}

// NewStream makes a stream of ctx's device.
func NewStream(ctx *cuda.Context) (*Stream, error) {
	cu, err := ctx.NewStream()
	if err != nil {
		return nil, err
	}
	return streamOn(ctx.Device(), &Stream{Driver: cu}), nil
}

// OpenStream makes a stream on device d.
func OpenStream(d hw.Device) (*engine.Stream, error) { return openStream(d, nil) }

// openStream makes a stream of device d, or borrows what *handle names.
func openStream(d hw.Device, handle *uintptr) (*engine.Stream, error) {
	ctx, err := cuda.Primary(d)
	if err != nil {
		return nil, fmt.Errorf("a stream on %v: %w", d, err)
	}
	g := streamOn(d, &Stream{ctx: ctx, borrowed: handle != nil})
	if handle != nil {
		g.Driver, err = ctx.StreamFrom(*handle)
	} else {
		g.Driver, err = ctx.NewStream()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a stream on %v: %w", d, err), ctx.Close())
	}
	return g.s, nil
}

// StreamFrom borrows a stream that somebody else made on d, by its CUstream.
func StreamFrom(d hw.Device, cuStream uintptr) (*engine.Stream, error) {
	if d.IsHost() {
		return nil, fmt.Errorf("a CUDA stream on %v: %w", d, fault.ErrArgument)
	}
	return openStream(d, &cuStream)
}

// Use calls f with the driver's stream, which is not closed meanwhile.
func (s *Stream) Use(f func(*cuda.Stream) error) error {
	s.using.RLock()
	defer s.using.RUnlock()
	if s.gone {
		return s.s.Fault(engine.ErrStreamClosed)
	}
	return f(s.Driver)
}

// Capturing reports whether somebody captures the stream, who must not be disturbed: nothing runs meanwhile.
func (s *Stream) Capturing() bool {
	if !s.borrowed {
		return false // nobody else has it
	}
	id, err := s.Driver.Capture()
	return id != 0 || err != nil
}

// TakesEarly reports whether kernels can be launched early on the stream. Others who capture it may look at the capture
// by calls that do not know of that, and fail on it.
func (s *Stream) TakesEarly() bool {
	return !s.Capturing() || s.Driver.OwnCapture()
}

// captured is capturing for who does not use the stream yet. Nobody captures one that is closed.
func (s *Stream) captured() (captured bool) {
	if s.borrowed {
		s.Use(func(*cuda.Stream) error {
			captured = s.Capturing()
			return nil
		})
	}
	return captured
}

// Before has what is queued next on cu begin after what is queued on s, by way of e. Where nothing is left of that, s
// is not touched: whoever has seen it done may close it. What somebody captures runs when he says.
func (s *Stream) Before(cu *cuda.Stream, e *cuda.Event) error {
	err := s.Use(func(first *cuda.Stream) error {
		if s.Capturing() {
			return nil
		}
		if done, err := first.Done(); done || err != nil {
			return err
		}
		if err := e.Record(first); err != nil {
			return err
		}
		return cu.Wait(e)
	})
	if errors.Is(err, fault.ErrClosed) { // nothing is queued on it
		return nil
	}
	return err
}

// Done reports whether all that was queued is done. The error is the device's.
func (s *Stream) Done() (done bool, err error) {
	gone := s.Use(func(cu *cuda.Stream) error {
		if s.Capturing() { // what is captured does not run
			done = true
			return nil
		}
		done, err = cu.Done()
		return nil
	})
	return done || gone != nil, err
}

// Quiet waits until all that was queued is done.
func (s *Stream) Quiet() {
	s.Use(func(cu *cuda.Stream) error {
		if s.Capturing() {
			return nil
		}
		return cu.Sync()
	})
}

// Await waits until all that was queued is done, or look returns an error, which it does between looks at the stream.
func (s *Stream) Await(look func(waited time.Duration) error) error { return Await(s.Done, look) }

// Await waits until reached says true or returns an error, or look does.
func Await(reached func() (bool, error), look func(waited time.Duration) error) error {
	var start time.Time
	for i := 0; ; i++ {
		done, err := reached()
		if done || err != nil {
			return err
		}
		if i < spinningLooks {
			runtime.Gosched()
			continue
		}
		if start.IsZero() {
			start = time.Now()
		}
		waited := time.Since(start)
		if err := look(waited); err != nil {
			return err
		}
		if waited < team.SleepAfter {
			runtime.Gosched()
		} else {
			team.SleepFor(waited)
		}
	}
}

// spinningLooks is how often a wait looks at a stream before it looks at the clock as well.
const spinningLooks = 16

// Sync waits until all that was queued has run, and returns the errors since the last Sync.
func (s *Stream) Sync(ctx context.Context) error {
	var early error
	err := s.Await(func(time.Duration) error {
		if ctx.Err() != nil {
			early = s.s.Fault(reason.Ended(ctx))
		}
		return early
	})
	if early != nil {
		return early
	}
	if err != nil { // the device's, which has ceased to work
		for _, u := range s.all() {
			u.FailDevice("stream", err)
		}
	}
	return errors.Join(err, s.takeErrors())
}

// all are the users, in the order in which their errors are told.
func (s *Stream) all() []StreamUser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}

func (s *Stream) takeErrors() error {
	errs := s.s.TakeErrors()
	for _, u := range s.all() {
		errs = append(errs, u.Collect()...)
	}
	return errors.Join(errs...)
}

// Enter has u's errors come from the stream, and whatever frees memory of g wait for it. g knows the stream before
// anybody can see that u has entered: both happen under mu, which nobody takes under g's lock.
func (s *Stream) Enter(u StreamUser, g *Domain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.users, u) {
		return
	}
	at := len(s.users)
	if u.Comm() != nil {
		for at > 0 && s.users[at-1].Comm() == nil {
			at--
		}
	}
	s.users = slices.Insert(s.users, at, u)
	g.Add(s)
}

// Leave ends u's use of the stream, when nothing of u is queued any more; u's errors stay.
func (s *Stream) Leave(u StreamUser) {
	s.mu.Lock()
	i := slices.Index(s.users, u)
	if i >= 0 {
		s.users = slices.Delete(s.users, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		return
	}
	for _, err := range u.Collect() {
		s.s.AddError(u.Comm(), err)
	}
}

// End closes the driver's stream, which nobody queues on any more; somebody may yet be waiting for it, as quiesce does.
func (s *Stream) End() error {
	s.using.Lock()
	s.gone = true
	s.using.Unlock()
	return s.Driver.Close()
}

// Close ends the stream: fault.ErrBusy while something is queued. It returns the errors that no Sync has returned.
func (s *Stream) Close() error {
	if done, _ := s.Done(); !done {
		return s.s.Fault(engine.ErrStreamBusy)
	}
	s.using.Lock()
	if s.gone {
		s.using.Unlock()
		return s.s.Fault(engine.ErrStreamClosed)
	}
	s.gone = true
	s.using.Unlock()
	err := s.takeErrors()
	s.mu.Lock()
	users := s.users
	s.users = nil
	s.mu.Unlock()
	for _, u := range users {
		u.Closed(s)
	}
	err = errors.Join(err, s.Driver.Close())
	if s.ctx != nil {
		err = errors.Join(err, s.ctx.Close())
	}
	return err
}
