package gpu

import (
	"errors"
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// error returns an error of an operation on the device. about is a rank of the communicator, or -1.
func (d *Device) error(k team.OpKind, seq uint64, step string, about int, err error) *fault.Error {
	c := d.c
	return &fault.Error{Op: k.String(), Seq: seq, Rank: c.Rank(), Peer: about, Host: c.Hostname(c.Rank()),
		Step: step, Device: d.Domain.Context.Device(), Err: err}
}

// Collect returns the errors that no stream has returned yet.
func (d *Device) Collect() []error {
	err := d.take()
	d.mu.Lock()
	errs := d.pending
	d.pending = nil
	d.mu.Unlock()
	add := func(err error) {
		if err != nil && (len(errs) == 0 || !errors.Is(errs[len(errs)-1], err)) { // a broken one repeats its error
			errs = append(errs, err)
		}
	}
	add(err)
	for _, k := range d.clients {
		add(k.Collect())
	}
	return errs
}

// take takes the error that kernels have reported, after queued work has ended. An error that leaves the peers waiting
// breaks the communicator, and take returns it from then on.
func (d *Device) take() error {
	d.mu.Lock()
	if d.gone {
		d.mu.Unlock()
		return nil
	}
	// A kernel that breaks the communicator also sets Abort. That is all it can do if the host has not taken an earlier
	// error. If it still runs, it may be about to report the error.
	aborted := d.status.Abort.Load() != 0 && d.c.Broken() == nil && !d.Busy()
	code := d.status.Error.Load()
	e, fatal := d.statusError(code)
	if code != kernels.OK { // else an error reported meanwhile would be lost
		d.status.Error.Store(kernels.OK)
	}
	d.mu.Unlock()
	var last error // the error that has broken the communicator
	switch {
	case fatal:
		last = d.c.FailOpen(e)
	case aborted:
		last = d.c.FailOpen(&fault.Error{Op: "device", Rank: d.c.Rank(), Peer: -1, Host: d.c.Hostname(d.c.Rank()),
			Step: "wait", Device: d.Domain.Context.Device(), Err: fmt.Errorf("an operation behind one whose error nobody "+
				"had asked for ended without its peers: %w", fault.ErrAborted)})
	}
	if b := d.c.Broken(); b != nil {
		last = b
	}
	switch {
	case aborted && !fatal && e != nil:
		return errors.Join(e, last)
	case last != nil:
		return last
	case e != nil:
		return e
	}
	return nil
}

// statusError returns the error in the status for code, nil if there is none, and whether it breaks the communicator. The
// caller holds mu.
func (d *Device) statusError(code uint32) (e *fault.Error, fatal bool) {
	s := d.status
	peer := d.Name(s.About(d.c.Team().Size()))
	k := team.OpKind(s.Mine >> 59)
	about := func(step string, err error) *fault.Error { return d.error(k, uint64(s.Epoch), step, peer, err) }
	switch code {
	case kernels.OK:
		return nil, false
	case kernels.Mismatch, kernels.Refused:
		if !team.Meet(s.Mine, s.Theirs) {
			return about("agree", fmt.Errorf("the groups differ: rank %d called %s where this rank called %s: %w", peer,
				team.Describe(s.Theirs), team.Describe(s.Mine), fault.ErrMismatch)), true
		}
		if k == team.KindRefused {
			return nil, false // this rank itself refused, and has returned why
		}
		if team.OpKind(s.Theirs>>59) == team.KindRefused {
			err := reason.OfCode(int(uint32(s.Theirs)))
			if err == nil {
				return about("agree", fmt.Errorf("rank %d refused, and says why in its own error", peer)), false
			}
			return about("agree", fmt.Errorf("rank %d refused: %w", peer, err)), false
		}
		return about("agree", fmt.Errorf("rank %d called %s, this rank %s: %w", peer, team.Describe(s.Theirs),
			team.Describe(s.Mine), fault.ErrMismatch)), false
	case kernels.Counts:
		expected, from, sent := s.CountsOf()
		return about("agree", fmt.Errorf("rank %d expects %d elements from rank %d, which sends %d: %w", peer, expected,
			d.Name(from), sent, fault.ErrMismatch)), false
	}
	return about(s.Broke(code, peer, time.Duration(d.c.Team().Timeout.Load()), "")), true
}

// Name returns the communicator's name for a rank of the team. -1 means no rank, and stays -1.
func (d *Device) Name(rank int) int {
	if rank < 0 || rank >= d.c.Team().Size() {
		return rank
	}
	return d.c.Team().Name(rank)
}

// watchEvery is the interval at which the watchdog looks.
const watchEvery = 50 * time.Millisecond

// Watch starts the watchdog. It is needed because no goroutine waits for queued work, and a kernel cannot see that a
// peer's process has died.
func (d *Device) Watch() {
	d.watching.Do(func() {
		d.mu.Lock()
		d.stopped = make(chan struct{})
		d.mu.Unlock()
		go d.watchdog()
	})
}

func (d *Device) watchdog() {
	defer close(d.stopped)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var closed time.Time // since when a peer has closed while queued work goes on
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		if d.c.Broken() != nil {
			d.Abort()
			if !d.Busy() {
				d.c.Team().PublishIdle()
			}
			continue // what is queued later must end as well
		}
		for _, k := range d.clients {
			k.Watch()
		}
		s := team.WaitState{Op: "device", Step: "wait"}
		e := d.c.Team().PollHealth(&s)
		r := d.c.Team().ClosedPeer()
		if r >= 0 && !d.Busy() {
			r = d.stuck()
		}
		if e == nil && r >= 0 {
			if closed.IsZero() {
				closed = time.Now()
			}
			if time.Since(closed) > closedGrace {
				e = d.c.Team().ClosedError(&s, r)
			}
		} else {
			closed = time.Time{}
		}
		if e != nil {
			e.Device = d.Domain.Context.Device()
			d.c.Fail(e)
			continue
		}
		d.mu.Lock()
		failed, fatal := d.statusError(d.status.Error.Load())
		if !fatal {
			failed = d.fatal()
		}
		d.mu.Unlock()
		if failed != nil {
			d.c.Fail(failed)
		}
	}
}

// stuck returns a peer that has closed its communicator while a client's queued work still waits for it, or -1.
func (d *Device) stuck() int {
	for _, k := range d.clients {
		if r := k.Stuck(); r >= 0 {
			return r
		}
	}
	return -1
}

// fatal returns a client's error that has broken the communicator, or nil. The caller holds mu.
func (d *Device) fatal() *fault.Error {
	for _, k := range d.clients {
		if e := k.Fatal(); e != nil {
			return e
		}
	}
	return nil
}

// closedGrace is how long queued work may go on after a peer has closed. The work may have all that it needs from that
// peer, or other work may run first; else it never ends. It is shorter than the transport's wait for peers to unmap,
// and so than engine.CloseTimeout: queued work ends before the closing peer gives up on it.
const closedGrace = 3 * time.Second

// Comm implements StreamUser.
func (d *Device) Comm() *engine.Comm { return d.c }

// Closed implements StreamUser.
func (d *Device) Closed(s *Stream) {
	d.last.CompareAndSwap(s, nil)
	d.Domain.Remove(s)
}
