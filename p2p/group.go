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

// Group is sends and receives that start together, so that their order in the group cannot make ranks wait for each
// other; between two ranks it is the order of the messages. The zero Group is empty and ready. It may be done again
// and again, on any communicator. Its memory is the host's, or all of one device (ErrArgument): then it is one kernel,
// unless it has more than 64 messages, and on a stream it is queued. One goroutine at a time. Source: ncclGroupStart
// and ncclGroupEnd, MPI's persistent requests.
type Group struct {
	calls    []call
	messages []*mail.Message
	received []int
	running  bool
}

// What is wrong with groups and requests.
var (
	errNoGroup   = engine.NilError("group", "new(p2p.Group) makes one")
	errNoRequest = engine.NilError("request", "Group.Start makes one")
	errRunning   = fmt.Errorf("the group's request is not done (its Wait, or Test until it says so, ends it): %w",
		fault.ErrBusy)
)

func (r *Request) nothing() bool { return r == nil || r.g == nil }

type call struct {
	peer int
	vec  inside.Vec
	recv bool
}

// Send adds a send of src to peer. Local; what is wrong with it is reported by Do and Start.
func (g *Group) Send(peer int, src ubcoll.Vec) { g.add(call{peer, inside.Vec(src), false}) }

// Recv adds a receive of the next message from peer into dst. Local; what is wrong with it is reported by Do and Start.
func (g *Group) Recv(peer int, dst ubcoll.Vec) { g.add(call{peer, inside.Vec(dst), true}) }

func (g *Group) add(k call) {
	if g != nil { // else Do and Start say so
		g.calls = append(g.calls, k)
	}
}

// Received is how many elements each Recv got, in the order in which they were added, when the group was last done. The
// slice is the group's, until it is started again. Local.
func (g *Group) Received() []int {
	if g == nil {
		return nil
	}
	return g.received
}

// Reset empties the group. Local; ErrBusy while a request is not done.
func (g *Group) Reset() error {
	switch {
	case g == nil:
		return errNoGroup
	case g.running:
		return errRunning
	}
	clear(g.calls)
	g.calls, g.received = g.calls[:0], g.received[:0]
	return nil
}

// Do sends and receives everything. Blocking until all is done; the errors of single messages are joined (on a device,
// the first one is told). If anything is wrong with a call, nothing is sent or received.
func (g *Group) Do(ctx context.Context, c *ubcoll.Comm) error {
	r, err := g.start(ctx, c)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// Start begins what Do does, and returns without waiting. The caller calls Wait, or Test until it is done, before
// Close; the memory is the caller's again after that. No goroutine of its own moves the messages: they move while this
// rank tests, or waits for anything, collectives and other communicators included. On a device they move by
// themselves, and on a stream, or in a capture, the request is done at once.
func (g *Group) Start(ctx context.Context, c *ubcoll.Comm) (*Request, error) {
	r, err := g.start(ctx, c)
	if err != nil {
		return nil, err
	}
	// What can go at once does.
	if _, err := r.Test(); err != nil && !r.done {
		return nil, err
	}
	return &r, nil
}

func (g *Group) start(ctx context.Context, c *ubcoll.Comm) (Request, error) {
	if g == nil {
		return Request{}, errNoGroup
	}
	if g.running {
		return Request{}, errRunning
	}
	e := (*inside.Comm)(c).View()
	if err := e.Err(); err != nil {
		return Request{}, err
	}
	if ctx == nil {
		return Request{}, e.LocalError("group", engine.ErrNilContext)
	}
	if g.onDevice(e) {
		return g.startDevice(ctx, e)
	}
	var errs []error
	for i := range g.calls {
		if err := check(ctx, e, "group", g.calls[i].peer, g.calls[i].vec.Team()); err != nil {
			errs = append(errs, fmt.Errorf("call %d: %w", i, err))
			continue
		}
		if i == len(g.messages) {
			g.messages = append(g.messages, new(mail.Message))
		}
		g.messages[i].Set(g.calls[i].peer, g.calls[i].vec.Team(), g.calls[i].recv, acquire)
	}
	if errs != nil {
		return Request{}, errors.Join(errs...)
	}
	m := e.Mail
	if err := m.Start("group", g.messages[:len(g.calls)]); err != nil {
		g.messages = nil
		return Request{}, err
	}
	g.running = true
	m.OpenRequest()
	return Request{g: g, c: e.Comm, m: m}, nil
}

// Request is a group that has been started. One goroutine at a time.
type Request struct {
	g    *Group
	c    *engine.Comm
	m    *mail.Mail
	p    mail.Patience
	done bool
	err  error

	device *mail.Transfer // of device memory; then there are no messages here
}

// Wait waits until everything is done, and returns the errors of the messages, joined. Blocking. If ctx ends first, the
// communicator is broken, as in all operations. Calling it again returns the same.
func (r *Request) Wait(ctx context.Context) error {
	switch {
	case r.nothing():
		return errNoRequest
	case r.done:
		return r.err
	case ctx == nil: // which would break the communicator
		return r.c.LocalError("group", engine.ErrNilContext)
	}
	if r.device != nil {
		return r.finishDevice(r.device.Wait(ctx))
	}
	ms := r.messages()
	if err := r.m.Await(ctx, "group", ms); err != nil {
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
	ms := r.messages()
	done, err := r.m.Test(&r.p, "group", ms)
	switch {
	case err != nil:
		return true, r.fail(err)
	case done:
		return true, r.finish(ms)
	}
	return false, nil
}

func (r *Request) messages() []*mail.Message { return r.g.messages[:len(r.g.calls)] }

// fail ends the request with its communicator, whose lanes keep the messages.
func (r *Request) fail(err error) error {
	r.done, r.err = true, err
	r.g.messages, r.g.running = nil, false
	r.m.CloseRequest()
	return err
}

func (r *Request) finish(ms []*mail.Message) error {
	var errs []error
	g := r.g
	g.received = g.received[:0]
	for _, h := range ms {
		if h.Err != nil {
			errs = append(errs, h.Err)
		}
		if h.Recv {
			g.received = append(g.received, h.Got)
		}
		h.Vec = team.Vec{} // keep nobody's memory alive
	}
	g.running = false
	r.p.Over(r.m)
	r.m.CloseRequest()
	r.done, r.err = true, errors.Join(errs...)
	return r.err
}
