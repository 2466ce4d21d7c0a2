package gpumail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Transfer is a set of messages of device memory that were started together.
type Transfer struct {
	m     *messages
	op    string
	line  int // in the status page
	after *mark
	none  bool    // there is none with ranks of this host
	far   *farRun // those with ranks of other hosts; or nil
	done  bool
	err   error
}

// Start starts messages that have been checked, together. The caller waits for the Transfer. If too many calls are under
// way, it waits if wait is set, else it fails.
func (m *Mail) Start(ctx context.Context, op string, calls []mail.Call, wait bool) (*Transfer, error) {
	return m.on.start(ctx, nil, op, messagesFor(calls), wait)
}

// start starts ms together. On a stream nothing more is to do, and the Transfer is nil; else the caller waits for it. If
// one of ms is wrong, none is started. wait is as in Mail.Start.
func (m *messages) start(ctx context.Context, s *engine.Stream, op string, ms []Message, wait bool) (*Transfer, error) {
	if err := m.c.Err(); err != nil {
		return nil, err
	}
	if err := m.lostPeer(op); err != nil {
		return nil, m.host.Fail(op, -1, err)
	}
	var t *Transfer
	var err error
	if near, away := m.split(ms); len(away) > 0 {
		t, err = m.far.start(ctx, s, op, near, away, wait)
	} else {
		t, err = m.begin(ctx, gpu.StreamOf(s), op, near, wait)
	}
	var e *fault.Error
	if err != nil && !errors.As(err, &e) {
		return nil, m.error(op, "", err)
	}
	return t, err
}

// lostPeer returns an error if a rank has seen a failure: messages queued now would wait in vain.
func (m *messages) lostPeer(op string) error {
	w := team.WaitState{Op: op, Step: "launch"}
	return m.host.Gated(op, -1, func() *fault.Error {
		t := m.c.Team()
		for r := range t.Peers {
			if v := t.Peers[r].Lost(); v != 0 && r != t.Rank() {
				return t.LostError(&w, r, v)
			}
		}
		return nil
	})
}

// begin queues ms on s, or if s is nil on a lane's own stream.
func (m *messages) begin(ctx context.Context, s *gpu.Stream, op string, ms []Message, wait bool) (*Transfer, error) {
	if _, err := m.load(); err != nil {
		return nil, err
	}
	graph := s != nil && s.Capturing()
	if graph {
		for i := range ms {
			if err := m.d.Keep(&ms[i].Vec); err != nil {
				return nil, err
			}
		}
	}
	held, err := m.prepare(ms, graph)
	defer unprepare(ms, held)
	if err != nil {
		return nil, err
	}
	for i := range ms {
		if x := m.throughFIFO(&ms[i]); x != nil && !graph {
			m.d.Await(x, kernels.FIFOBytes)
		}
	}
	t := &Transfer{m: m, op: op}
	if s == nil {
		if t.line, err = m.statusLine(ctx, wait); err != nil {
			return nil, err
		}
	}
	var begun bool
	t.after, begun, err = m.queue(s, t.line, ms)
	switch {
	case begun, err != nil && !errors.Is(err, fault.ErrClosed) && !errors.Is(err, fault.ErrLimit):
		return nil, m.c.FailOpen(m.error(op, "device", err)) // queued work may still write the line, so it is not given back
	case err != nil:
		m.giveBack(t.line)
		return nil, err
	}
	m.note(ms)
	if s != nil {
		m.putBack(t.after)
		return nil, nil
	}
	return t, nil
}

// statusLine returns a free status line.
func (m *messages) statusLine(ctx context.Context, wait bool) (int, error) {
	select {
	case line := <-m.spare:
		return line, nil
	default:
	}
	if !wait {
		return 0, fmt.Errorf("%d requests are not done (their Wait, or Test until it says so, ends them): %w",
			cap(m.spare), fault.ErrLimit)
	}
	select {
	case line := <-m.spare:
		return line, nil
	case <-ctx.Done():
		return 0, reason.Ended(ctx)
	}
}

// Test reports whether all messages are done, and then their error.
func (t *Transfer) Test() (bool, error) {
	if t.done {
		return true, t.err
	}
	if t.far != nil {
		select {
		case <-t.far.ended:
		default:
			return false, nil
		}
	}
	done, err := t.m.reached(t.after)
	if !done && err == nil {
		return false, nil
	}
	return true, t.finish(err)
}

// Wait waits until all are done. If ctx ends first, it breaks the communicator, and they end at once.
func (t *Transfer) Wait(ctx context.Context) error {
	if t.done {
		return t.err
	}
	c := t.m.c
	t.waitFar(ctx)
	var since time.Time // when the communicator was first seen broken
	err := gpu.Await(func() (bool, error) { return t.m.reached(t.after) }, func(time.Duration) error {
		if ctx.Err() != nil {
			c.FailOpen(t.m.error(t.op, "wait", reason.Ended(ctx))) // kernels use the memory until they end, soon
		}
		switch {
		case c.Broken() == nil:
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > gpu.WaitGrace:
			return fmt.Errorf("what is queued has not ended after %v: %w", gpu.WaitGrace, fault.ErrTimeout)
		}
		return nil
	})
	return t.finish(err)
}

// waitFar waits for the messages with ranks of other hosts.
func (t *Transfer) waitFar(ctx context.Context) {
	r := t.far
	switch {
	case r == nil:
	case r.ended == nil:
		r.err = r.run(ctx)
	default:
		select {
		case <-r.ended:
		case <-ctx.Done():
			t.m.c.FailOpen(t.m.error(t.op, "wait", reason.Ended(ctx)))
			<-r.ended
		}
	}
}

// finish collects the kernels' report; err is the driver's error.
func (t *Transfer) finish(err error) error {
	m := t.m
	c := m.c
	m.putBack(t.after)
	t.done, t.after = true, nil
	if t.none && err == nil {
		t.err = t.far.err
		return t.err
	}
	if err != nil {
		t.err = c.FailOpen(m.error(t.op, "device", err))
		return t.err // the line is not given back: something may still write it
	}
	var e *fault.Error
	var fatal bool
	open := m.d.LockStatus()
	if open {
		s := m.status(t.line)
		if e, fatal = m.statusError(t.op, s); fatal && errors.Is(e, fault.ErrAborted) {
			if first := m.Fatal(); first != nil {
				e = first
			}
		}
		if !fatal {
			s.Error.Store(kernels.OK)
			s.Claim.Store(0)
			m.giveBack(t.line)
		}
		m.d.UnlockStatus()
	}
	if fatal {
		c.FailOpen(e)
	}
	if t.far != nil && e == nil {
		t.err = t.far.err
	}
	switch b := c.Broken(); {
	case b != nil && (fatal || !open):
		t.err = b
	case e != nil:
		t.err = e
	}
	return t.err // nil for messages that finished before another message broke the communicator
}
