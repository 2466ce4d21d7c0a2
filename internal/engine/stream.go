package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/turn"
)

// Stream is an in-order queue of operations. On a device the driver has the queue. On the host a goroutine runs it,
// which lives from the first queued operation to the last. Operations between hosts are in both on a device: a kernel stands
// for each in the driver's queue, and the goroutine runs it.
type Stream struct {
	dev    hw.Device
	device DeviceStream // nil on the host

	placing sync.Mutex // held while operations get their places in both queues of a device's stream

	mu      sync.Mutex
	queue   []queued
	running bool
	closed  bool          // for the host; a DeviceStream has its own
	idle    chan struct{} // closed when the queue has run empty; nil while it is
	errs    []failure     // since the last Sync
}

// DeviceStream is a stream of a device, whose queue is the driver's; package gpu implements it.
type DeviceStream interface {
	// Launch queues c's own Work, and LaunchAll queues works in order, which LastOp reports as one if group is set. A
	// nil error means that they were queued; later errors come from Sync.
	Launch(ctx context.Context, c *Comm) error
	LaunchAll(ctx context.Context, c *Comm, works []team.Work, group bool) error
	// Carry queues kernels that carry the data of works to the host and back, in order, for the stream's goroutine to run the
	// works. It calls place when it is certain that they run. No carriers: somebody else captures the stream, and the works run
	// whenever the capture does.
	Carry(c *Comm, works []team.Work, place func()) ([]Carrier, error)
	// Sync waits until everything queued has run, and returns the errors since the last Sync.
	Sync(ctx context.Context) error
	// Close ends the stream, with the errors that no Sync has returned: fault.ErrBusy while operations are queued.
	Close() error
}

// Carrier carries the data of an operation that is queued on a stream of a device.
type Carrier interface {
	team.Carrier
	// End ends it; what was not stored is left out.
	End()
}

type queued struct {
	c      *Comm
	ctx    context.Context
	works  []team.Work
	group  bool // LastOp reports them as one
	first  int  // of these among all calls of the group
	all    int
	failed *bool  // some call of the group has failed; the later ones are left out, on all ranks
	after  func() // called when the works are over; or nil
	ticket *turn.Ticket
	// carriers are of works on a stream of a device.
	carriers []Carrier
	do       func(context.Context) error // runs instead of works, independently of the communicator's order
	proxied  bool                        // do is what a kernel on the stream waits for
}

// NewStream makes a stream on host memory.
func NewStream() *Stream { return &Stream{dev: hw.Host} }

// StreamOn makes a stream of device d with the queue on.
func StreamOn(d hw.Device, on DeviceStream) *Stream { return &Stream{dev: d, device: on} }

// OnDevice is the stream's queue on a device, or nil.
func (s *Stream) OnDevice() DeviceStream { return s.device }

func (s *Stream) enqueue(c *Comm, ctx context.Context, works []team.Work, group bool, after func()) error {
	if s.device != nil && c.SpansHosts() {
		return s.carry(c, ctx, works, group, after)
	}
	if after != nil && s.device != nil {
		defer after()
	}
	if s.device != nil {
		return s.device.LaunchAll(ctx, c, works, group)
	}
	for i := range works {
		if works[i].Kernel.Name != "" {
			if after != nil {
				after()
			}
			return c.LocalError(works[i].Kind.String(), fmt.Errorf("memory on a device, and the stream is on %v: %w", s.dev,
				fault.ErrArgument))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		if after != nil {
			after()
		}
		return c.LocalError("stream", s.closedError())
	}
	var k *turn.Ticket
	c.inOrder(works, func() { k = c.turn.Take() })
	s.add(queued{c: c, ctx: ctx, works: works, group: group, after: after, ticket: k})
	return nil
}

// carry is enqueue on a stream of a device, of a communicator on several hosts.
func (s *Stream) carry(c *Comm, ctx context.Context, works []team.Work, group bool, after func()) (err error) {
	all, failed := len(works), new(bool)
	for n := 0; len(works) > 0; works = works[n:] {
		n = 1
		if o := works[0].Other; o != nil { // also after a failure: the other ranks have queued theirs
			err = errors.Join(err, o.Run(ctx, false))
			continue
		}
		for k := works[0].Carriers(); n < len(works) && works[n].Other == nil; n++ {
			if k += works[n].Carriers(); k > mostCarried {
				break
			}
		}
		q := queued{c: c, ctx: ctx, works: works[:n], group: group, first: all - len(works), all: all,
			failed: failed}
		if n == len(works) {
			q.after = after
			return errors.Join(err, s.carrySome(q))
		}
		err = errors.Join(err, s.carrySome(q))
	}
	if after != nil {
		s.mu.Lock()
		s.add(queued{c: c, ctx: ctx, do: func(context.Context) error {
			after()
			return nil
		}})
		s.mu.Unlock()
	}
	return err
}

// mostCarried is how many kernels of several operations are queued at most before the stream's goroutine serves the first of
// them. The driver takes a thousand or so that wait, and less is queued where ranks share a device.
const mostCarried = 200

// carrySome is carry for some collectives.
func (s *Stream) carrySome(q queued) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	q.works = slices.Clone(q.works) // a graph's are launched again
	for i := range q.works {        // the driver's queue would have copied the counts, too
		w := &q.works[i]
		w.SendCounts, w.RecvCounts = slices.Clone(w.SendCounts), slices.Clone(w.RecvCounts)
	}
	var err error
	if q.carriers, err = s.device.Carry(q.c, q.works, func() { q.ticket = q.c.turn.Take() }); q.carriers == nil {
		if q.after != nil {
			q.after()
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(q)
	return nil
}

// Do queues do, which is no collective of c. place, if not nil, is called once do's place on the stream is certain.
func (s *Stream) Do(ctx context.Context, c *Comm, do func(context.Context) error, place func() error) error {
	ctx = Context(ctx)
	if s.device != nil {
		return c.LocalError("stream", fmt.Errorf("memory on the host, and the stream is on %v: %w", s.dev,
			fault.ErrArgument))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return c.LocalError("stream", s.closedError())
	}
	if place != nil {
		if err := place(); err != nil {
			return err
		}
	}
	s.add(queued{c: c, ctx: ctx, do: do})
	return nil
}

// Proxy queues do on a stream of a device, for the kernel that queue queues there: both are in the same order.
func (s *Stream) Proxy(ctx context.Context, c *Comm, queue func() error, do func(context.Context) error) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	if err := queue(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(queued{c: c, ctx: ctx, do: do, proxied: true})
	return nil
}

// Device is the device on which the stream's operations run.
func (s *Stream) Device() hw.Device { return s.dev }

// Fault is an error of the stream itself.
func (s *Stream) Fault(err error) error {
	return &fault.Error{Op: "stream", Rank: -1, Peer: -1, Device: s.dev, Err: err}
}

// closedError is the error of a closed stream.
func (s *Stream) closedError() error {
	if s == noStream {
		return errNoStream
	}
	return ErrStreamClosed
}

func (s *Stream) add(q queued) {
	s.queue = append(s.queue, q)
	if !s.running {
		s.running, s.idle = true, make(chan struct{})
		go s.drain()
	}
}

func (s *Stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		q := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()
		told := (q.carriers != nil || q.proxied) && q.c.Broken() != nil // Sync of such a stream says that
		err := q.run()
		s.mu.Lock()
		if err != nil && !told {
			s.fail(q.c, err)
		}
		if q.carriers != nil {
			s.mu.Unlock()
			q.end() // after fail, so that Sync returns the error
			s.mu.Lock()
		}
		if q.ticket != nil {
			q.c.turn.Leave() // after fail, so that Close returns the error
		}
		if q.carriers != nil && q.after != nil {
			s.mu.Unlock()
			q.after() // which may wait for the device
			s.mu.Lock()
		}
	}
	s.running = false
	close(s.idle)
	s.idle = nil
}

// run runs q. The operation keeps the turn until the caller leaves it.
func (q *queued) run() error {
	if q.do != nil {
		return q.do(q.ctx)
	}
	<-q.ticket.Ready
	if q.carriers != nil {
		return q.c.runCarried(q)
	}
	if q.after != nil {
		defer q.after()
	}
	if q.group {
		q.c.Tracer.Count()
	}
	return q.c.runAll(q.ctx, q.works, q.group)
}

// end lets the kernels of works that have not run go on.
func (q *queued) end() {
	for _, k := range q.carriers {
		k.End()
	}
}

// Sync waits until everything queued has run, and returns the errors since the last Sync.
func (s *Stream) Sync(ctx context.Context) error {
	switch {
	case s == nil, s == noStream:
		return errNoStream
	case ctx == nil:
		return s.Fault(ErrNilContext)
	case s.device != nil:
		return s.device.Sync(ctx)
	}
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return s.Fault(reason.Ended(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.failures()...)
}

// Empty reports whether the stream's goroutine has nothing to run.
func (s *Stream) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.running
}

// failure is an operation's error that no Sync has returned yet: one of c or, if c is nil, of a channel or window.
type failure struct {
	c   *Comm
	err error
}

// AddError is fail for callers that do not hold mu.
func (s *Stream) AddError(c *Comm, err error) {
	s.mu.Lock()
	s.fail(c, err)
	s.mu.Unlock()
}

// TakeErrors is failures for callers that do not hold mu.
func (s *Stream) TakeErrors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures()
}

// fail keeps an operation's error for the next Sync. The caller holds mu.
func (s *Stream) fail(c *Comm, err error) {
	s.errs = append(s.errs, failure{c, err})
	if c == nil { // later calls of the channel or window return it, too
		return
	}
	c.unreported.mu.Lock()
	c.unreported.n++
	c.unreported.last = err
	c.unreported.mu.Unlock()
}

// failures takes the errors since the last Sync. The caller holds mu.
func (s *Stream) failures() (errs []error) {
	for _, f := range s.errs {
		if errs = append(errs, f.err); f.c == nil {
			continue
		}
		f.c.unreported.mu.Lock()
		f.c.unreported.n--
		f.c.unreported.mu.Unlock()
	}
	s.errs = nil
	return errs
}

// unreported counts the failed operations of a communicator on streams whose errors no Sync has returned.
type unreported struct {
	mu   sync.Mutex
	n    int
	last error
}

// left returns an error if there are any, for the caller that closes the communicator, because no Sync may come.
func (u *unreported) left() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == 0 {
		return nil
	}
	return fmt.Errorf("%d operations on streams have failed, and nobody has called Stream.Sync, which says so; the last "+
		"one: %w", u.n, u.last)
}

// Close ends the stream, with the errors that no Sync has returned. fault.ErrBusy while operations are queued;
// fault.ErrClosed the second time.
func (s *Stream) Close() error {
	switch {
	case s == nil, s == noStream:
		return errNoStream
	case s.device != nil:
		return s.device.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return s.Fault(ErrStreamClosed)
	case s.running:
		return s.Fault(ErrStreamBusy)
	}
	s.closed = true
	return errors.Join(s.failures()...)
}
