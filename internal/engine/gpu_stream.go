package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// GPUStream is the part of a Stream that is a stream of a device: the queue is the driver's. Implements engine.DeviceStream.
type GPUStream struct {
	s        *Stream       // which keeps the errors
	ctx      *cuda.Context // to close with the stream, or nil
	CUDA     *cuda.Stream
	borrowed bool

	using sync.RWMutex // held for reading while cu is used, for writing to close it
	gone  bool         // cu is closed

	taken atomic.Int32 // the room that the kernel takes that was queued last: see follows

	mu    sync.Mutex
	users map[streamUser]bool // that have queued on it
}

// GPUStreamOf is the part of s that is a stream of a device; nil if it is on the host, or nil.
func GPUStreamOf(s *Stream) *GPUStream {
	if s == nil {
		return nil
	}
	g, _ := s.OnDevice().(*GPUStream)
	return g
}

// streamOn is the Stream that has cu.
func streamOn(d hw.Device, g *GPUStream) *GPUStream {
	g.s, g.users = StreamOn(d, g), map[streamUser]bool{}
	return g
}

// newStream makes a stream of ctx's device.
func NewGPUStream(ctx *cuda.Context) (*GPUStream, error) {
	cu, err := ctx.NewStream()
	if err != nil {
		return nil, err
	}
	return streamOn(ctx.Device(), &GPUStream{CUDA: cu}), nil
}

// OpenStream makes a stream on device d.
func OpenStream(d hw.Device) (*Stream, error) { return openStream(d, nil) }

// openStream makes a stream of device d, or borrows what *handle names.
func openStream(d hw.Device, handle *uintptr) (*Stream, error) {
	ctx, err := cuda.Primary(d)
	if err != nil {
		return nil, fmt.Errorf("a stream on %v: %w", d, err)
	}
	g := streamOn(d, &GPUStream{ctx: ctx, borrowed: handle != nil})
	if handle != nil {
		g.CUDA, err = ctx.StreamFrom(*handle)
	} else {
		g.CUDA, err = ctx.NewStream()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a stream on %v: %w", d, err), ctx.Close())
	}
	return g.s, nil
}

// StreamFrom borrows a stream that somebody else made on d, by its CUstream.
func StreamFrom(d hw.Device, cuStream uintptr) (*Stream, error) {
	if d.IsHost() {
		return nil, fmt.Errorf("a CUDA stream on %v: %w", d, fault.ErrArgument)
	}
	return openStream(d, &cuStream)
}

// Use calls f with the driver's stream, which is not closed meanwhile.
func (s *GPUStream) Use(f func(*cuda.Stream) error) error {
	s.using.RLock()
	defer s.using.RUnlock()
	if s.gone {
		return s.s.error(errStreamClosed)
	}
	return f(s.CUDA)
}

// Capturing reports whether somebody captures the stream, who must not be disturbed: nothing runs meanwhile.
func (s *GPUStream) Capturing() bool {
	if !s.borrowed {
		return false // nobody else has it
	}
	id, err := s.CUDA.Capture()
	return id != 0 || err != nil
}

// TakesEarly reports whether kernels can be launched early on the stream. Others who capture it may look at the capture by
// calls that do not know of that, and fail on it.
func (s *GPUStream) TakesEarly() bool {
	return !s.Capturing() || s.CUDA.OwnCapture()
}

// captured is capturing for who does not use the stream yet. Nobody captures one that is closed.
func (s *GPUStream) captured() (captured bool) {
	if s.borrowed {
		s.Use(func(*cuda.Stream) error {
			captured = s.Capturing()
			return nil
		})
	}
	return captured
}

// Before has what is queued next on cu begin after what is queued on s, by way of e. Where nothing is left of that, s is
// not touched: whoever has seen it done may close it. What somebody captures runs when he says.
func (s *GPUStream) Before(cu *cuda.Stream, e *cuda.Event) error {
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
func (s *GPUStream) Done() (done bool, err error) {
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
func (s *GPUStream) Quiet() {
	s.Use(func(cu *cuda.Stream) error {
		if s.Capturing() {
			return nil
		}
		return cu.Sync()
	})
}

// Await waits until all that was queued is done, or look returns an error, which it does between looks at the stream.
func (s *GPUStream) Await(look func(waited time.Duration) error) error { return Await(s.Done, look) }

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
func (s *GPUStream) Sync(ctx context.Context) error {
	var early error
	err := s.Await(func(time.Duration) error {
		if ctx.Err() != nil {
			early = s.s.error(fault.Ended(ctx))
		}
		return early
	})
	if early != nil {
		return early
	}
	if err != nil { // the device's, which has ceased to work
		for _, u := range s.all() {
			u.Broke("stream", err)
		}
	}
	return errors.Join(err, s.takeErrors())
}

// all are the users.
func (s *GPUStream) all() (users []streamUser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for u := range s.users {
		users = append(users, u)
	}
	return users
}

func (s *GPUStream) takeErrors() error {
	errs := s.s.takeErrors()
	for _, u := range s.all() {
		errs = append(errs, u.Collect()...)
	}
	return errors.Join(errs...)
}

// Enter has u's errors come from the stream. It reports whether they have not so far.
func (s *GPUStream) Enter(u streamUser) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[u] {
		return false
	}
	s.users[u] = true
	return true
}

// Leave ends u's use of the stream, when nothing of u is queued any more; u's errors stay.
func (s *GPUStream) Leave(u streamUser) {
	s.mu.Lock()
	mine := s.users[u]
	delete(s.users, u)
	s.mu.Unlock()
	if !mine {
		return
	}
	for _, err := range u.Collect() {
		s.s.addError(u.Comm(), err)
	}
}

// Close ends the stream: fault.ErrBusy while something is queued. It returns the errors that no Sync has returned.
func (s *GPUStream) Close() error {
	if done, _ := s.Done(); !done {
		return s.s.error(errStreamBusy)
	}
	s.using.Lock()
	if s.gone {
		s.using.Unlock()
		return s.s.error(errStreamClosed)
	}
	s.gone = true
	s.using.Unlock()
	err := s.takeErrors()
	s.s.end()
	s.mu.Lock()
	users := s.users
	s.users = map[streamUser]bool{}
	s.mu.Unlock()
	for u := range users {
		u.Closed(s)
	}
	err = errors.Join(err, s.CUDA.Close())
	if s.ctx != nil {
		err = errors.Join(err, s.ctx.Close())
	}
	return err
}
