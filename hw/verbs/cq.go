//go:build linux && cgo && (amd64 || arm64)

package verbs

// #include "lib.h"
import "C"

import (
	"context"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/fault"
)

// Channel tells when a completion queue that asked for it ([CQ.Notify]) has a completion. (ibv_comp_channel)
type Channel struct {
	owner
	device  *Device
	channel *C.ubv_comp_channel
	ready   *waiter
}

// CreateChannel makes a completion channel. (ibv_create_comp_channel)
func (d *Device) CreateChannel() (*Channel, error) {
	if err := d.make("completion channel"); err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	var raw *C.ubv_comp_channel
	err := d.check("ibv_create_comp_channel", "", C.ubv_create_channel(d.context, &raw))
	var ready *waiter
	if err == nil {
		if ready, err = newWaiter(int(raw.fd), d.name+" completions"); err != nil {
			C.ubv_destroy_channel(raw)
		}
	}
	if err != nil {
		d.unmake("completion channel")
		return nil, err
	}
	return &Channel{device: d, channel: raw, ready: ready}, nil
}

// FD is the channel's descriptor, for poll(2): it is readable when Wait would not block. It belongs to the channel and
// is non-blocking. FD returns -1 once the channel is closed.
func (c *Channel) FD() int {
	fd, err := c.use(func() C.int { return c.channel.fd })
	if err != nil {
		return -1
	}
	return int(fd)
}

// Wait blocks until one of the channel's queues that asked by Notify has a completion. If ctx ends first, Wait returns
// its cause. After Wait, poll the queue, call Notify again, and poll once more: completions that arrived before that
// Notify raise no event. One goroutine waits at a time; others wait for their turn. (ibv_get_cq_event)
func (c *Channel) Wait(ctx context.Context) error {
	var result error
	err := c.ready.wait(ctx, func() bool {
		var cq *C.ubv_cq
		code, err := c.use(func() C.int {
			code := C.ubv_get_event(c.channel, &cq)
			if code == 0 {
				C.ubv_ack(cq, 1) // at once: the queue cannot be destroyed before this
			}
			return code
		})
		if code == C.int(syscall.EAGAIN) && err == nil {
			return false
		}
		result = err
		if err == nil {
			result = c.device.check("ibv_get_cq_event", "", code)
		}
		return true
	})
	if err == nil {
		err = result
	}
	if err != nil {
		return fmt.Errorf("completion channel of %s: %w", c.device.name, err)
	}
	return nil
}

// Take is Wait without waiting: it reports whether there was an event. (ibv_get_cq_event)
func (c *Channel) Take() (bool, error) {
	var cq *C.ubv_cq
	code, err := c.use(func() C.int {
		code := C.ubv_get_event(c.channel, &cq)
		if code == 0 {
			C.ubv_ack(cq, 1)
		}
		return code
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("completion channel of %s: %w", c.device.name, err)
	case code == C.int(syscall.EAGAIN):
		return false, nil
	}
	return code == 0, c.device.check("ibv_get_cq_event", "", code)
}

// Close destroys the channel; a Wait under way ends. (ibv_destroy_comp_channel)
func (c *Channel) Close() error {
	if err := c.end("completion channel of "+c.device.name, "ibv_destroy_comp_channel", c.device.name, func() C.int {
		return C.ubv_destroy_channel(c.channel)
	}); err != nil {
		return err
	}
	c.ready.close()
	c.device.unmake("completion channel")
	return nil
}

// CQ is a completion queue.
type CQ struct {
	owner
	device  *Device
	channel *Channel // or nil
	cq      *C.ubv_cq
	entries int
}

// CreateCQ makes a queue for at least that many completions. channel may be nil; without it, Notify fails. A queue that
// gets more completions than it holds breaks, with everything that uses it: the caller has to choose the size.
// (ibv_create_cq)
func (d *Device) CreateCQ(entries int, channel *Channel) (*CQ, error) {
	if entries < 1 || entries > d.limits.CQEntries {
		return nil, fmt.Errorf("a completion queue of %d entries: %s offers 1 to %d: %w", entries, d.name, d.limits.CQEntries,
			fault.ErrArgument)
	}
	if channel != nil && channel.device != d {
		return nil, fmt.Errorf("the completion channel is of %s, the queue of %s: %w", channel.device.name, d.name, fault.ErrArgument)
	}
	if err := d.make("completion queue"); err != nil {
		return nil, fmt.Errorf("%s: %w", d.name, err)
	}
	var raw *C.ubv_comp_channel
	if channel != nil {
		if err := channel.make("completion queue"); err != nil {
			d.unmake("completion queue")
			return nil, fmt.Errorf("completion channel of %s: %w", d.name, err)
		}
		raw = channel.channel
	}
	c := &CQ{device: d, channel: channel}
	var cq *C.ubv_cq
	if err := d.checkQueue("ibv_create_cq", fmt.Sprintf("%d entries", entries),
		C.ubv_create_cq(d.context, C.int(entries), raw, 0, &cq)); err != nil {
		c.leave()
		return nil, err
	}
	c.cq, c.entries = cq, int(cq.cqe)
	return c, nil
}

// leave takes the queue off the counts of the objects that it was made of.
func (c *CQ) leave() {
	if c.channel != nil {
		c.channel.unmake("completion queue")
	}
	c.device.unmake("completion queue")
}

// Entries is how many completions the queue holds.
func (c *CQ) Entries() int { return c.entries }

// A Completion has the layout of ubv_wc, and Work and Receive have the layouts that lib.h declares.
var (
	_ [unsafe.Sizeof(Completion{})]byte = [C.sizeof_ubv_wc]byte{}
	_ [unsafe.Sizeof(Work{})]byte       = [C.sizeof_ubv_work]byte{}
	_ [unsafe.Sizeof(Receive{})]byte    = [C.sizeof_ubv_receive]byte{}
)

// Poll takes completions and returns how many of done it has filled. It looks up to tries times, at least once, before
// it returns 0: a look takes a few nanoseconds, a call from Go ten times that. Failed work is among the completions;
// [CQ.Failure] says how it failed. Poll allocates nothing. (ibv_poll_cq)
func (c *CQ) Poll(done []Completion, tries int) (int, error) {
	if len(done) == 0 {
		return 0, fmt.Errorf("completion queue of %s: no room for completions: %w", c.device.name, fault.ErrArgument)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, fmt.Errorf("completion queue of %s: %w", c.device.name, fault.ErrClosed)
	}
	var n C.int
	code := C.ubv_poll(c.cq, (*C.ubv_wc)(unsafe.Pointer(&done[0])), C.int(len(done)), C.int(tries), &n)
	return int(n), c.device.check("ibv_poll_cq", "", code)
}

// Failure returns nil for a completion that succeeded, else a *[CompletionError].
func (c *CQ) Failure(done *Completion) error {
	if done.Status == Success {
		return nil
	}
	e := &CompletionError{Status: done.Status, Text: C.GoString(C.ubv_status(C.int(done.Status))), Vendor: done.Vendor,
		Device: c.device.name, QP: done.QP, ID: done.ID}
	if q, ok := c.device.pairs.Load(done.QP); ok {
		pair := q.(*QP)
		e.Peer, e.Work = pair.posted(done.ID)
		if pair.config.Send != c {
			e.Work = nil // this completion is a receive's
		}
	}
	return e
}

// Notify asks the channel to tell of the next completion or, if solicited, of the next one that failed or that the peer
// marked Solicited. (ibv_req_notify_cq)
func (c *CQ) Notify(solicited bool) error {
	if c.channel == nil {
		return fmt.Errorf("completion queue of %s: it has no channel: %w", c.device.name, fault.ErrArgument)
	}
	only := C.int(0)
	if solicited {
		only = 1
	}
	code, err := c.use(func() C.int { return C.ubv_notify(c.cq, only) })
	if err != nil {
		return fmt.Errorf("completion queue of %s: %w", c.device.name, err)
	}
	return c.device.check("ibv_req_notify_cq", "", code)
}

// Close destroys the queue. Completions in it are lost. (ibv_destroy_cq)
func (c *CQ) Close() error {
	if err := c.end("completion queue of "+c.device.name, "ibv_destroy_cq", c.device.name, func() C.int {
		return C.ubv_destroy_cq(c.cq)
	}); err != nil {
		return err
	}
	c.leave()
	return nil
}
