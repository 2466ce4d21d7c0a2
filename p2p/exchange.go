package p2p

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Exchange is sends and receives that start together, so that their order in it cannot make ranks wait for each other;
// between two ranks it is the order of the messages. The zero Exchange is empty and ready. It may be done again and
// again, on any communicator, and allocates nothing then if it blocks and is of host memory. Its memory is the host's,
// or all of one device (ErrArgument): then it is one kernel, unless it has more than 64 messages. On a stream it is
// queued, and a receive has exactly as many elements as are sent (ErrMismatch). Allowed in capture if it is of device
// memory, and not in a group (ErrArgument), which is one itself. One goroutine at a time. Source: MPI's persistent
// requests (MPI-4.1, 3.9).
type Exchange struct {
	op       string // "" for "exchange"
	calls    []mail.Call
	messages []*mail.Message
	received []int
	running  bool
}

// What is wrong with exchanges and requests.
var (
	errNoExchange = engine.NilError("exchange", "new(p2p.Exchange) makes one")
	errNoRequest  = engine.NilError("request", "ISend, IRecv and Exchange.Start make one")
	errRunning    = fmt.Errorf("the exchange's request is not done (its Wait, or Test until it says so, ends it): %w",
		fault.ErrBusy)
)

func (r *Request) nothing() bool { return r == nil || r.x == nil }

// Send adds a send of src to peer. Local; what is wrong with it is reported by Do and Start.
func (x *Exchange) Send(peer int, src ubcoll.Vec) { x.add(peer, &src, false) }

// Recv adds a receive of the next message from peer into dst. Local; what is wrong with it is reported by Do and Start.
func (x *Exchange) Recv(peer int, dst ubcoll.Vec) { x.add(peer, &dst, true) }

func (x *Exchange) add(peer int, v *ubcoll.Vec, recv bool) {
	if x != nil { // else Do and Start say so
		x.calls = append(x.calls, mail.Call{Vec: *(*inside.Vec)(v).Team(), Peer: peer, Recv: recv})
	}
}

// Received is how many elements each Recv got, in the order in which they were added, when the exchange was last done.
// The slice is the exchange's, until it is started again. Local.
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

// Do sends and receives everything. Blocking until all is done; the errors of single messages are joined (on a device,
// the first one is told). If anything is wrong with a call, nothing is sent or received.
//
// Errors as of Send and Recv; ErrArgument also in a group, for memory that is not in one place, and a nil Exchange;
// ErrBusy while a request of x is not done.
func (x *Exchange) Do(ctx context.Context, c *ubcoll.Comm) error {
	r, err := x.start(ctx, c, true)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Start begins what Do does, and returns without waiting. The caller calls Wait, or Test until it is done, before
// [ubcoll.Comm.Close]; the memory is the caller's again after that. No goroutine of its own moves the messages: they
// move while this rank tests, or waits for anything, collectives and other communicators included. On a device they
// move by themselves, and 127 requests at most are under way ([ubcoll.ErrLimit]); on a stream, or in a capture, the
// request is done at once.
//
// Errors of the arguments are those of Do, here; those of the messages come from the request.
func (x *Exchange) Start(ctx context.Context, c *ubcoll.Comm) (*Request, error) {
	r, err := x.start(ctx, c, false)
	if err != nil {
		return nil, err
	}
	// What can go at once does.
	if _, err := r.Test(); err != nil && !r.done {
		return nil, err
	}
	return &r, nil
}

// ISend begins to send src to peer, and returns without waiting, whatever the size; the request's Wait, or Test, ends
// it. src is the caller's again then. On a stream it is queued, and the request is done at once. It takes its place
// among the messages to peer now. Not in a group or, of host memory, in a capture (ErrArgument). Errors of the
// arguments are those of [Send], here; those of the message come from the request. Any goroutine. Source: MPI_Isend
// (MPI-4.1, 3.7.2).
func ISend(ctx context.Context, c *ubcoll.Comm, peer int, src ubcoll.Vec) (*Request, error) {
	x := &Exchange{op: "isend"}
	x.Send(peer, src)
	return x.Start(ctx, c)
}

// IRecv begins to receive the next message from peer into dst, and returns without waiting; the request's Wait, or
// Test, ends it, and Received says how many elements it had. dst is left alone until then. On a stream it is queued,
// the request is done at once, and dst has exactly as many elements as are sent. Not in a group or, of host memory, in
// a capture (ErrArgument). Errors of the arguments are those of [Recv], here; those of the message come from the
// request. Any goroutine. Source: MPI_Irecv (MPI-4.1, 3.7.2).
func IRecv(ctx context.Context, c *ubcoll.Comm, peer int, dst ubcoll.Vec) (*Request, error) {
	x := &Exchange{op: "irecv"}
	x.Recv(peer, dst)
	return x.Start(ctx, c)
}

// start begins, and may wait for what others have begun.
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
	if err := e.Mail.Usable(x.op); err != nil {
		e.FailRecording(team.Work{Kind: team.KindMessages}, err)
		return Request{}, err
	}
	if ctx == nil {
		return Request{}, e.LocalError(x.op, engine.ErrNilContext)
	}
	onDevice := x.onDevice(e)
	if onDevice || e.Stream != nil || e.Recorder != nil {
		return x.startTogether(ctx, e, onDevice, wait)
	}
	var errs []error
	for i := range x.calls {
		k := &x.calls[i]
		if err := check(ctx, e, x.op, k.Peer, &k.Vec); err != nil {
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
	m := e.Mail
	if err := m.Start(x.op, x.messages[:len(x.calls)]); err != nil {
		x.messages = nil
		return Request{}, err
	}
	x.running = true
	m.OpenRequest()
	return Request{x: x, c: e.Comm, m: m, messages: x.messages[:len(x.calls)]}, nil
}

// name is an error of call i.
func (x *Exchange) name(i int, err error) error {
	if len(x.calls) == 1 && x.op != "exchange" {
		return err
	}
	return fmt.Errorf("call %d: %w", i, err)
}

// onDevice reports whether the messages are on a device: those of empty memory go with the others.
func (x *Exchange) onDevice(e *inside.View) bool {
	for i := range x.calls {
		if mail.OnDevice(e.Stream, &x.calls[i].Vec) {
			return true
		}
	}
	return false
}

// startTogether starts what is on a device, queued or recorded.
func (x *Exchange) startTogether(ctx context.Context, e *inside.View, onDevice, wait bool) (Request, error) {
	t := e.Mail.Together(e.Stream, x.op, onDevice, acquire)
	t.Requests = true
	errs := []error{t.Usable(ctx)}
	for i, k := range x.calls {
		if err := t.Call(k); err != nil {
			errs = append(errs, x.name(i, err))
		}
	}
	r := Request{x: x, c: e.Comm, m: e.Mail}
	err := errors.Join(errs...)
	switch {
	case err == nil && len(x.calls) == 0 && e.Recorder == nil:
	case err == nil && e.Recorder == nil && e.Stream == nil:
		t.AtOnce = !wait
		r.device, err = t.Transfer(ctx)
		x.running = err == nil
		return r, err
	default:
		if err = submit(ctx, e, t, err); err != nil {
			return Request{}, err
		}
	}
	r.finishDevice(nil) // queued, or captured: that was all
	return r, nil
}

// Request is messages that have been started. One goroutine at a time.
type Request struct {
	x    *Exchange
	c    *engine.Comm
	m    *mail.Mail
	p    mail.Patience
	done bool
	err  error

	messages []*mail.Message
	device   *mail.Transfer // of device memory, instead of messages
	received int
}

// Received is how many elements its receives got, together: 0 until it is done. On a stream it is as many as were asked
// for. Local.
func (r *Request) Received() int {
	if r.nothing() {
		return 0
	}
	return r.received
}

// Wait waits until everything is done, and returns the errors of the messages, joined. Blocking. ErrMismatch for a
// message that has another type than its receive, or does not fit; ErrPeerLost, ErrTimeout, ErrAborted, and a context
// that ends first, which break the communicator. Calling it again returns the same.
func (r *Request) Wait(ctx context.Context) error {
	switch {
	case r.nothing():
		return errNoRequest
	case r.done:
		return r.err
	case ctx == nil: // which would break the communicator
		return r.c.LocalError(r.x.op, engine.ErrNilContext)
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

// Test moves the messages on as far as they go at once, and reports whether everything is done; only then its error is
// that of the messages, or why the communicator is broken. Local, does not wait.
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

// fail ends the request with its communicator, whose lanes keep the messages.
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
	for _, h := range ms {
		if h.Err != nil {
			errs = append(errs, h.Err)
		}
		if h.Recv {
			x.received = append(x.received, h.Got)
			r.received += h.Got
		}
		h.Vec = team.Vec{} // keep nobody's memory alive
	}
	x.running = false
	r.p.Over(r.m)
	r.m.CloseRequest()
	if r.done, r.err = true, errors.Join(errs...); r.err != nil {
		r.received = 0
	}
	return r.err
}

// finishDevice ends a request of a device, or of what was queued.
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
