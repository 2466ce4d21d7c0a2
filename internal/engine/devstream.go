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

// onDevice is the part of a Stream that is a stream of a device: the queue is the driver's.
type onDevice struct {
	ctx      *cuda.Context // to close with the stream, or nil
	cu       *cuda.Stream
	borrowed bool

	using sync.RWMutex // held for reading while cu is used, for writing to close it
	gone  bool         // cu is closed

	taken atomic.Int32 // the room that the kernel takes that was queued last: see follows

	// Under Stream.mu: what has queued on it.
	devs  map[*device]bool // communicators
	links map[*gpuLink]bool
}

// newStream makes a stream of ctx's device.
func newStream(ctx *cuda.Context) (*Stream, error) {
	cu, err := ctx.NewStream()
	if err != nil {
		return nil, err
	}
	return &Stream{dev: ctx.Device(), device: &onDevice{cu: cu, devs: map[*device]bool{}, links: map[*gpuLink]bool{}}}, nil
}

// openStream makes a stream of device d, or borrows what *handle names.
func openStream(d hw.Device, handle *uintptr) (*Stream, error) {
	ctx, err := cuda.Primary(d)
	if err != nil {
		return nil, fmt.Errorf("a stream on %v: %w", d, err)
	}
	s := &Stream{dev: d, device: &onDevice{ctx: ctx, borrowed: handle != nil, devs: map[*device]bool{},
		links: map[*gpuLink]bool{}}}
	if handle != nil {
		s.device.cu, err = ctx.StreamFrom(*handle)
	} else {
		s.device.cu, err = ctx.NewStream()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a stream on %v: %w", d, err), ctx.Close())
	}
	return s, nil
}

// StreamFrom borrows a stream that somebody else made on d, by its CUstream.
func StreamFrom(d hw.Device, cuStream uintptr) (*Stream, error) {
	if d.IsHost() {
		return nil, fmt.Errorf("a CUDA stream on %v: %w", d, fault.ErrArgument)
	}
	return openStream(d, &cuStream)
}

// Device is where the stream's operations run.
func (s *Stream) Device() hw.Device { return s.dev }

// use calls f with the driver's stream, which is not closed meanwhile.
func (s *Stream) use(f func(*cuda.Stream) error) error {
	s.device.using.RLock()
	defer s.device.using.RUnlock()
	if s.device.gone {
		return s.error(errStreamClosed)
	}
	return f(s.device.cu)
}

// capturing reports whether somebody captures the stream, who must not be disturbed: nothing runs meanwhile.
func (s *Stream) capturing() bool {
	if !s.device.borrowed {
		return false // nobody else has it
	}
	id, err := s.device.cu.Capture()
	return id != 0 || err != nil
}

// takesEarly reports whether kernels can be launched early on the stream. Others who capture it may look at the capture by
// calls that do not know of that, and fail on it.
func (s *Stream) takesEarly() bool {
	return !s.capturing() || s.device.cu.OwnCapture()
}

// captured is capturing for who does not use the stream yet. Nobody captures one that is closed.
func (s *Stream) captured() (captured bool) {
	if s.device.borrowed {
		s.use(func(*cuda.Stream) error {
			captured = s.capturing()
			return nil
		})
	}
	return captured
}

// before has what is queued next on cu begin after what is queued on s, by way of e. Where nothing is left of that, s is
// not touched: whoever has seen it done may close it. What somebody captures runs when he says.
func (s *Stream) before(cu *cuda.Stream, e *cuda.Event) error {
	err := s.use(func(first *cuda.Stream) error {
		if s.capturing() {
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

// done reports whether all that was queued is done. The error is the device's.
func (s *Stream) done() (done bool, err error) {
	gone := s.use(func(cu *cuda.Stream) error {
		if s.capturing() { // what is captured does not run
			done = true
			return nil
		}
		done, err = cu.Done()
		return nil
	})
	return done || gone != nil, err
}

// quiet waits until all that was queued is done.
func (s *Stream) quiet() {
	s.use(func(cu *cuda.Stream) error {
		if s.capturing() {
			return nil
		}
		return cu.Sync()
	})
}

// await waits until all that was queued is done, or look returns an error, which it does between looks at the stream.
func (s *Stream) await(look func(waited time.Duration) error) error { return await(s.done, look) }

// await waits until reached says true or returns an error, or look does.
func await(reached func() (bool, error), look func(waited time.Duration) error) error {
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

// syncDevice waits until all that was queued has run, and returns the errors since the last Sync.
func (s *Stream) syncDevice(ctx context.Context) error {
	var early error
	err := s.await(func(time.Duration) error {
		if ctx.Err() != nil {
			early = s.error(fault.Ended(ctx))
		}
		return early
	})
	if early != nil {
		return early
	}
	if err != nil { // the device's, which has ceased to work
		for _, d := range s.users() {
			d.broke("stream", err)
		}
		for _, g := range s.channels() {
			g.d.broke("stream", err)
		}
	}
	return errors.Join(err, s.takeErrors())
}

// users are the communicators that have queued on the stream.
func (s *Stream) users() (devs []*device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.device.devs {
		devs = append(devs, d)
	}
	return devs
}

func (s *Stream) takeErrors() error {
	s.mu.Lock()
	errs := s.failures()
	s.mu.Unlock()
	for _, d := range s.users() {
		errs = append(errs, d.collect()...)
	}
	for _, g := range s.channels() {
		errs = append(errs, g.collect())
	}
	return errors.Join(errs...)
}

// channels are the ends of channels that have queued on the stream.
func (s *Stream) channels() (links []*gpuLink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.device.links {
		links = append(links, g)
	}
	return links
}

// leave ends d's use of the stream, when nothing of d is queued any more; d's errors stay.
func (s *Stream) leave(d *device) {
	s.mu.Lock()
	mine := s.device.devs[d]
	delete(s.device.devs, d)
	s.mu.Unlock()
	if !mine {
		return
	}
	errs := d.collect()
	for _, err := range errs {
		s.addError(d.c, err)
	}
}

func (s *Stream) closeDevice() error {
	if done, _ := s.done(); !done {
		return s.error(errStreamBusy)
	}
	s.device.using.Lock()
	if s.device.gone {
		s.device.using.Unlock()
		return s.error(errStreamClosed)
	}
	s.device.gone = true
	s.device.using.Unlock()
	err := s.takeErrors()
	s.mu.Lock()
	s.closed = true
	devs := s.device.devs
	s.device.devs = map[*device]bool{}
	links := s.device.links
	s.device.links = map[*gpuLink]bool{}
	s.mu.Unlock()
	for g := range links {
		g.d.gpu.remove(s)
	}
	for d := range devs {
		d.last.CompareAndSwap(s, nil)
		d.gpu.remove(s)
	}
	err = errors.Join(err, s.device.cu.Close())
	if s.device.ctx != nil {
		err = errors.Join(err, s.device.ctx.Close())
	}
	return err
}
