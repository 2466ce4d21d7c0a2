package p2p

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/mail"
)

// doDevice sends and receives ms on the device, or queues that. n is how many elements are received: as many as there
// is room for, or it is an error.
func doDevice(ctx context.Context, e *inside.View, op string, ms ...mail.DeviceMessage) (n int, err error) {
	t, err := e.Mail.Transfer(ctx, e.Stream, e.Recorder, op, ms)
	if err == nil && t != nil {
		err = t.Wait(ctx)
	}
	if err != nil {
		return 0, err
	}
	return ms[len(ms)-1].Vec.Len, nil
}

// onDevice reports whether a group's messages are on a device: those of empty memory go with the others.
func (g *Group) onDevice(e *inside.View) bool {
	for i := range g.calls {
		if mail.OnDevice(e.Stream, g.calls[i].vec.Team()) {
			return true
		}
	}
	return false
}

// startDevice starts a group on the device.
func (g *Group) startDevice(ctx context.Context, e *inside.View) (Request, error) {
	ms := make([]mail.DeviceMessage, len(g.calls))
	var errs []error
	for i, k := range g.calls {
		ms[i] = mail.DeviceMessage{Vec: *k.vec.Team(), Peer: k.peer, Recv: k.recv}
		if err := e.Mail.CheckDevice(e.Stream, "group", &ms[i]); err != nil {
			errs = append(errs, fmt.Errorf("call %d: %w", i, err))
		}
	}
	if errs != nil {
		return Request{}, errors.Join(errs...)
	}
	t, err := e.Mail.Transfer(ctx, e.Stream, e.Recorder, "group", ms)
	if err != nil {
		return Request{}, err
	}
	r := Request{g: g, c: e.Comm, device: t}
	if t == nil { // queued, or captured: that was all
		r.finishDevice(nil)
		return r, nil
	}
	g.running = true
	return r, nil
}

// finishDevice ends a request of a device.
func (r *Request) finishDevice(err error) error {
	g := r.g
	g.running = false
	g.received = g.received[:0]
	for i := range g.calls {
		if k := &g.calls[i]; k.recv {
			g.received = append(g.received, k.vec.Team().Len)
		}
	}
	r.done, r.err = true, err
	return err
}
