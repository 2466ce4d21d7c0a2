package p2p

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpumail"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Exchange is a set of sends and receives that start together, so their order in it cannot make ranks wait for each
// other; between two ranks, messages match in the order of the set. The zero Exchange is empty and ready. It may be
// done repeatedly, on any communicator; a blocking exchange of host memory then allocates nothing. All its memory is on
// the host, or all on one device (ErrArgument); on a device it is one kernel, unless it has more than 64 messages, or
// more than 16 pairs of a peer and a direction. On a stream it is queued, and a receive must have exactly as many
// elements as are sent (ErrMismatch). Allowed in capture if it is of device memory. Not allowed in a group, which is
// itself an exchange (ErrArgument). One goroutine at a time. Source: MPI's persistent requests (MPI-4.1, 3.9).
type Exchange struct {
	op       string // "" for "exchange"
	calls    []mail.Call
	messages []*mail.Message
	received []int
	running  bool
}

// Errors of exchanges and requests.
var (
	errNoExchange = engine.NilError("exchange", "new(p2p.Exchange) makes one")
	errNoRequest  = engine.NilError("request", "ISend, IRecv and Exchange.Start make one")
	errRunning    = fmt.Errorf("the exchange's request is not done (its Wait, or Test until it says so, ends it): %w",
		fault.ErrBusy)
)

func (r *Request) nothing() bool { return r == nil || r.x == nil }

// Send adds a send of src to peer. Local; Do and Start report its errors.
func (x *Exchange) Send(peer int, src ubcoll.Vec) { x.add(peer, &src, false) }

// Recv adds a receive of the next message from peer into dst. Local; Do and Start report its errors.
func (x *Exchange) Recv(peer int, dst ubcoll.Vec) { x.add(peer, &dst, true) }

func (x *Exchange) add(peer int, v *ubcoll.Vec, recv bool) {
	if x != nil { // Do and Start report a nil Exchange
		x.calls = append(x.calls, mail.Call{Vec: *(*inside.Vec)(v).Team(), Peer: peer, Recv: recv})
	}
}

// Received is how many elements each Recv got in the last exchange, in the order in which the Recvs were added. The
// slice belongs to the Exchange and is valid until the next start. Local.
func (x *Exchange) Received() []int {
	if x == nil {
		return nil
	}
	return x.received
}

// Reset empties the exchange. Local; ErrBusy while a request is not done.
func (x *Exchange) Reset() error {
	switch {
	case x == nil:
		return errNoExchange
	case x.running:
		return errRunning
	}
	clear(x.calls)
	x.calls, x.received = x.calls[:0], x.received[:0]
	return nil
}

// Do sends and receives everything. Blocking until all is done. The errors of the messages are joined; on a device only
// the first is reported. If the arguments of any message are wrong, nothing is sent or received.
//
// Errors as in Send and Recv; ErrArgument also in a group, for memory on more than one device or on host and device,
// and for a nil Exchange; ErrBusy while a request of x is not done.
func (x *Exchange) Do(ctx context.Context, c *ubcoll.Comm) error {
	r, err := x.start(ctx, c, true)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Start begins what Do does, and returns without waiting. The caller must call Wait, or Test until it reports true,
// before [ubcoll.Comm.Close]; after that it may use the memory again. No goroutine of the library moves the messages:
// they move while this rank tests, or waits for anything, collectives and other communicators included. On a device
// they move by themselves, and at most 127 requests may be under way ([ubcoll.ErrLimit]). On a stream, or in a capture,
// the request is done at once.
//
// Start returns the errors of the arguments, as Do does; the request returns the errors of the messages.
func (x *Exchange) Start(ctx context.Context, c *ubcoll.Comm) (*Request, error) {
	r, err := x.start(ctx, c, false)
	if err != nil {
		return nil, err
	}
	// Messages that can move at once do so now.
	if _, err := r.Test(); err != nil && !r.done {
		return nil, err
	}
	return &r, nil
}

// ISend begins to send src to peer, and returns without waiting, whatever the size. The message takes its place among
// the messages to peer now. The request's Wait, or Test, ends it, and src is then the caller's again. On a stream it is
// queued, and the request is done at once. Not in a group or, for host memory, in a capture (ErrArgument). ISend
// returns the errors of the arguments, as [Send] does; the request returns those of the message. Any goroutine. Source:
// MPI_Isend (MPI-4.1, 3.7.2).
func ISend(ctx context.Context, c *ubcoll.Comm, peer int, src ubcoll.Vec) (*Request, error) {
	x := &Exchange{op: "isend"}
	x.Send(peer, src)
	return x.Start(ctx, c)
}

// IRecv begins to receive the next message from peer into dst, and returns without waiting. The request's Wait, or
// Test, ends it, and Received then says how many elements came. The caller must not touch dst until then. On a stream
// it is queued, the request is done at once, and dst must have exactly as many elements as are sent. Not in a group or,
// for host memory, in a capture (ErrArgument). IRecv returns the errors of the arguments, as [Recv] does; the request
// returns those of the message. Any goroutine. Source: MPI_Irecv (MPI-4.1, 3.7.2).
func IRecv(ctx context.Context, c *ubcoll.Comm, peer int, dst ubcoll.Vec) (*Request, error) {
	x := &Exchange{op: "irecv"}
	x.Recv(peer, dst)
	return x.Start(ctx, c)
}

// start begins the exchange. If wait is set, it may first wait for exchanges that others have begun.
func (x *Exchange) start(ctx context.Context, c *ubcoll.Comm, wait bool) (Request, error) {
	if x == nil {
		return Request{}, errNoExchange
	}
	if x.running {
		return Request{}, errRunning
	}
	if x.op == "" {
		x.op = "exchange"
	}
	e := (*inside.Comm)(c).View()
	if err := e.Mail.Usable(); err != nil {
		e.FailRecording(engine.Called{Kind: team.KindMessages}, err)
		return Request{}, err
	}
	if ctx == nil {
		return Request{}, e.LocalError(x.op, engine.ErrNilContext)
	}
	device := onDevice(e, x.calls)
	if device || e.Stream != nil || e.Recorder != nil {
		return x.startBatch(ctx, e, device, wait)
	}
	var errs []error
	for i := range x.calls {
		k := &x.calls[i]
		if err := check(ctx, e, x.op, k.Peer, &k.Vec, k.Recv); err != nil {
			errs = append(errs, x.name(i, err))
			continue
		}
		if i == len(x.messages) {
			x.messages = append(x.messages, new(mail.Message))
		}
		x.messages[i].Set(k.Peer, &k.Vec, k.Recv, acquire)
	}
	if errs != nil {
		return Request{}, errors.Join(errs...)
	}
	if t := e.Tracer; t != nil {
		t.Count()
	}
	m := e.Mail
	if err := m.Start(x.op, x.messages[:len(x.calls)]); err != nil {
		x.messages = nil
		return Request{}, err
	}
	x.running = true
	m.OpenRequest()
	return Request{x: x, c: e.Comm, m: m, messages: x.messages[:len(x.calls)]}, nil
}

// name adds the number of call i to err, if there are several calls.
func (x *Exchange) name(i int, err error) error {
	if len(x.calls) == 1 && x.op != "exchange" {
		return err
	}
	return fmt.Errorf("call %d: %w", i, err)
}

// startBatch starts an exchange that is on a device, queued or recorded.
func (x *Exchange) startBatch(ctx context.Context, e *inside.View, device, wait bool) (Request, error) {
	errs := []error{e.Mail.UsableNow(ctx, x.op)}
	for i := range x.calls {
		if err := unfit(e, x.op, device, &x.calls[i]); err != nil {
			errs = append(errs, x.name(i, err))
		}
	}
	r := Request{x: x, c: e.Comm, m: e.Mail}
	err := errors.Join(errs...)
	switch {
	case err == nil && len(x.calls) == 0 && e.Recorder == nil:
	case err == nil && e.Recorder == nil && e.Stream == nil: // then it is on a device
		e.Tracer.Count()
		r.device, err = e.GPUMail.Start(ctx, x.op, x.calls, wait)
		x.running = err == nil
		return r, err
	default:
		if err = submit(ctx, e, x.op, device, x.calls, true, err); err != nil {
			return Request{}, err
		}
	}
	r.finishDevice(nil) // queued or captured: the request is done
	return r, nil
}

// Request is a set of messages that have been started. One goroutine at a time.
type Request struct {
	x    *Exchange
	c    *engine.Comm
	m    *mail.Mail
	p    mail.Patience
	done bool
	err  error

	messages []*mail.Message
	device   *gpumail.Transfer // for device memory, instead of messages
	received int
}

// Received is how many elements the request's receives got, in all; 0 until it is done. On a stream it is the number
// asked for. Local.
func (r *Request) Received() int {
	if r.nothing() {
		return 0
	}
	return r.received
}

// Wait waits until everything is done, and returns the errors of the messages, joined. Blocking. ErrMismatch for a
// message that has another type than its receive, or does not fit. ErrPeerLost, ErrTimeout, ErrAborted and a context
// that ends first break the communicator. Calling it again returns the same.
func (r *Request) Wait(ctx context.Context) error {
	switch {
	case r.nothing():
		return errNoRequest
	case r.done:
		return r.err
	case ctx == nil: // waiting with it would break the communicator
		return r.c.LocalError(r.x.op, engine.ErrNilContext)
	}
	if t := r.c.Tracer; t != nil {
		defer t.Mark(ctx, r.x.op).End()
	}
	if r.device != nil {
		return r.finishDevice(r.device.Wait(ctx))
	}
	ms := r.messages
	if err := r.m.Await(ctx, r.x.op, ms); err != nil {
		return r.fail(err)
	}
	return r.finish(ms)
}

// Test moves the messages as far as they go at once, and reports whether everything is done. Only when it is done, the
// error is that of the messages, or the reason why the communicator broke. Local, does not wait.
func (r *Request) Test() (bool, error) {
	switch {
	case r.nothing():
		return true, errNoRequest
	case r.done:
		return true, r.err
	}
	if r.device != nil {
		done, err := r.device.Test()
		if done {
			r.finishDevice(err)
		}
		return done, err
	}
	ms := r.messages
	done, err := r.m.Test(&r.p, r.x.op, ms)
	switch {
	case err != nil:
		return true, r.fail(err)
	case done:
		return true, r.finish(ms)
	}
	return false, nil
}

// fail ends the request with its communicator, which keeps the messages in its lanes.
func (r *Request) fail(err error) error {
	r.done, r.err = true, err
	r.x.messages, r.x.running = nil, false
	r.m.CloseRequest()
	return err
}

func (r *Request) finish(ms []*mail.Message) error {
	var errs []error
	x := r.x
	x.received = x.received[:0]
	for _, m := range ms {
		if m.Err != nil {
			errs = append(errs, m.Err)
		}
		if m.Recv {
			x.received = append(x.received, m.Got)
			r.received += m.Got
		}
		m.Vec = team.Vec{} // do not keep the memory alive
	}
	x.running = false
	r.p.Over(r.m)
	r.m.CloseRequest()
	if r.done, r.err = true, errors.Join(errs...); r.err != nil {
		r.received = 0
	}
	return r.err
}

// finishDevice ends a request that is on a device or was queued.
func (r *Request) finishDevice(err error) error {
	x := r.x
	x.running = false
	x.received = x.received[:0]
	for i := range x.calls {
		if k := &x.calls[i]; k.Recv && err == nil {
			x.received = append(x.received, k.Vec.Len)
			r.received += k.Vec.Len
		}
	}
	r.done, r.err = true, err
	return err
}
