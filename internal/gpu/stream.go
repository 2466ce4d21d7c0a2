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

// Stream is the device's part of an engine.Stream: the queue is the driver's. Implements engine.DeviceStream.
type Stream struct {
	s        *engine.Stream // keeps the errors
	ctx      *cuda.Context  // of a user's stream, closed with it
	of       *shared        // gets the driver's stream back, if it is none of a user's
	Driver   *cuda.Stream
	borrowed bool

	using sync.RWMutex // held for reading while Driver is in use, for writing to close Driver
	gone  bool         // Driver has been closed

	taken atomic.Int32 // the room that the last queued kernel takes, see Follows
	paced atomic.Int32 // see pace

	mu    sync.Mutex
	users []StreamUser // everybody who has queued on it: communicators first, each kind in the order of first use
	told  []error      // what Sync has returned last: a broken communicator repeats its error until it is closed
}

// StreamOf returns the device's part of s. It is nil if s is nil or a stream of the host.
func StreamOf(s *engine.Stream) *Stream {
	if s == nil {
		return nil
	}
	g, _ := s.OnDevice().(*Stream)
	return g
}

// streamOn makes an engine.Stream on d whose queue is g, which has the driver's stream.
func streamOn(d hw.Device, g *Stream) *Stream {
	g.s = engine.StreamOn(d, g)
	return g
}

// NewStream makes a stream of d's device, which ends before d.
func (d *Domain) NewStream() (*Stream, error) {
	cu, err := d.shared.takeStream()
	if err != nil {
		return nil, err
	}
	return streamOn(d.Context.Device(), &Stream{Driver: cu, of: d.shared}), nil
}

// OpenStream makes a stream on device d.
func OpenStream(d hw.Device) (*engine.Stream, error) { return openStream(d, nil) }

// openStream makes a stream on device d. If handle is not nil, it borrows the CUstream *handle instead.
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

// StreamFrom borrows cuStream, a CUstream that somebody else made on d and keeps.
func StreamFrom(d hw.Device, cuStream uintptr) (*engine.Stream, error) {
	if d.IsHost() {
		return nil, fmt.Errorf("a CUDA stream on %v: %w", d, fault.ErrArgument)
	}
	return openStream(d, &cuStream)
}

// Use calls f with the driver's stream. The stream cannot be closed while f runs.
func (s *Stream) Use(f func(*cuda.Stream) error) error {
	s.using.RLock()
	defer s.using.RUnlock()
	if s.gone {
		return s.s.Fault(engine.ErrStreamClosed)
	}
	return f(s.Driver)
}

// Capturing reports whether somebody is capturing the stream. Nothing runs then, and the capture must not be disturbed.
func (s *Stream) Capturing() bool {
	if !s.borrowed {
		return false // nobody else knows the stream
	}
	id, err := s.Driver.Capture()
	return id != 0 || err != nil
}

// TakesEarly reports whether kernels can be launched early on the stream. Others who capture the stream may examine the
// capture by calls of the driver that do not support early launches and fail.
func (s *Stream) TakesEarly() bool {
	return !s.Capturing() || s.Driver.OwnCapture()
}

// Captured is Capturing for callers outside of Use. Nobody captures a closed stream.
func (s *Stream) Captured() (captured bool) {
	if s.borrowed {
		s.Use(func(*cuda.Stream) error {
			captured = s.Capturing()
			return nil
		})
	}
	return captured
}

// Before makes the work that is queued next on cu wait, by means of e, for the work that is queued on s now. If all of
// that is done already, s is left alone, since somebody who has seen it done may close s. Captured work is not waited for:
// whoever captures it decides when it runs.
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
	if errors.Is(err, fault.ErrClosed) { // so nothing is queued on it
		return nil
	}
	return err
}

// Done reports whether all queued work is done. An error is the device's.
func (s *Stream) Done() (done bool, err error) {
	gone := s.Use(func(cu *cuda.Stream) error {
		if s.Capturing() { // captured work does not run
			done = true
			return nil
		}
		done, err = cu.Done()
		return nil
	})
	return done || gone != nil, err
}

// idle is Done for callers who must not wait for those who use the stream: then it is false.
func (s *Stream) idle() bool {
	if !s.using.TryRLock() {
		return false
	}
	defer s.using.RUnlock()
	if s.gone {
		return true
	}
	if s.Capturing() {
		return false
	}
	done, err := s.Driver.Done()
	return done || err != nil
}

// Quiet waits until all queued work is done.
func (s *Stream) Quiet() {
	s.Use(func(cu *cuda.Stream) error {
		if s.Capturing() {
			return nil
		}
		return cu.Sync()
	})
}

// Await waits until all queued work is done or look returns an error. It calls look again and again while it waits.
func (s *Stream) Await(look func(waited time.Duration) error) error { return Await(s.Done, look) }

// Await waits until reached reports true, or reached or look returns an error.
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

// spinningLooks is the number of checks that a wait makes before it begins to read the clock.
const spinningLooks = 16

// paceMost is how many times work may be queued on a stream of a device that ranks share before that waits until all of
// it has ended. The driver takes some thousand items, and waits to take more, while other threads can queue nothing.
const paceMost = 256

// pace is called before work is queued n times.
func (s *Stream) pace(n int32) {
	if s.paced.Add(n) <= paceMost || s.Captured() {
		return
	}
	s.Await(func(time.Duration) error { return nil }) // an error of the device comes back from what is queued next
	s.paced.Store(n)
}

// Sync waits until all queued work has run, and returns the errors since the last Sync.
func (s *Stream) Sync(ctx context.Context) error {
	var early, failed error
	look := func(time.Duration) error {
		if ctx.Err() != nil {
			early = s.s.Fault(reason.Ended(ctx))
		}
		return early
	}
	var w carryWait
	for !s.s.Empty() && early == nil { // the driver, which others need meanwhile, is asked now and then whether the device has failed
		if waited := w.step(); waited > 0 && look(waited) == nil && failed == nil {
			_, failed = s.Done()
			s.failed(failed)
		}
	}
	if early == nil && failed == nil {
		failed = s.Await(look)
	}
	if early != nil {
		return early
	}
	s.failed(failed)
	return errors.Join(failed, s.takeErrors())
}

// failed tells all users if the device has failed.
func (s *Stream) failed(err error) {
	if err == nil {
		return
	}
	for _, u := range s.all() {
		u.FailDevice("stream", err)
	}
}

// all returns the users in the order in which Sync reports their errors.
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
	s.mu.Lock()
	s.told = errs
	s.mu.Unlock()
	return errors.Join(errs...)
}

// Enter makes u a user of the stream: Sync returns u's errors too, and whoever frees memory of g waits for the stream. g
// knows the stream before anybody can see that u has entered, since both happen under mu. Nobody takes mu under g's lock.
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

// Leave ends u's use of the stream. Nothing of u is queued any more. The stream keeps u's errors, but those that Sync has
// returned.
func (s *Stream) Leave(u StreamUser) {
	s.mu.Lock()
	told := s.told
	i := slices.Index(s.users, u)
	if i >= 0 {
		s.users = slices.Delete(s.users, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		return
	}
	for _, err := range u.Collect() {
		if !slices.Contains(told, err) {
			s.s.AddError(u.Comm(), err)
		}
	}
}

// End ends a stream that NewStream has made. Nobody queues on it any more, but somebody may still wait for it, as quiesce
// does.
func (s *Stream) End() error {
	s.using.Lock()
	s.gone = true
	s.using.Unlock()
	return s.of.giveStream(s.Driver)
}

// Close ends the stream and returns the errors that no Sync has returned. It is fault.ErrBusy while work is queued.
func (s *Stream) Close() error {
	if done, _ := s.Done(); !done || !s.s.Empty() {
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
