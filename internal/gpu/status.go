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

// error is an error of an operation on the device, about one of the communicator's ranks, or -1.
func (d *Device) error(k team.OpKind, seq uint64, step string, about int, err error) *fault.Error {
	c := d.c
	return &fault.Error{Op: k.String(), Seq: seq, Rank: c.Rank(), Peer: about, Host: c.Hostname(c.Rank()),
		Step: step, Device: d.Domain.Context.Device(), Err: err}
}

// Collect takes the errors that no stream has returned yet.
func (d *Device) Collect() []error {
	err := d.take()
	d.mu.Lock()
	errs := d.pending
	d.pending = nil
	d.mu.Unlock()
	add := func(err error) {
		if err != nil && (len(errs) == 0 || !errors.Is(errs[len(errs)-1], err)) { // a broken communicator says it twice
			errs = append(errs, err)
		}
	}
	add(err)
	for _, k := range d.clients {
		add(k.Collect())
	}
	return errs
}

// take takes what the kernels have said, once what was queued is done. An error that leaves the others waiting breaks
// the communicator, and is then returned each time.
func (d *Device) take() error {
	d.mu.Lock()
	if d.gone {
		d.mu.Unlock()
		return nil
	}
	// Kernels that break the communicator abort it as well, where they have no place to say why: nobody had taken the
	// error before. One that still runs may be about to say it.
	aborted := d.status.Abort.Load() != 0 && d.c.Broken() == nil && !d.Busy()
	code := d.status.Error.Load()
	e, fatal := d.told(code)
	if code != kernels.OK { // else what is told meanwhile would be lost
		d.status.Error.Store(kernels.OK)
	}
	d.mu.Unlock()
	var last error // what has broken the communicator
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

// told is what the status says with code, nil if there is no error, and whether it breaks the communicator. The caller
// holds mu.
func (d *Device) told(code uint32) (e *fault.Error, fatal bool) {
	s := d.status
	peer := d.name(s.About(d.c.Team().Size()))
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
			return nil, false // by this rank itself, which knows
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
			d.name(from), sent, fault.ErrMismatch)), false
	}
	return about(s.Broke(code, time.Duration(d.c.Team().Timeout.Load()), "")), true
}

// name is what the communicator calls a rank of the team; -1 is none, and stays it.
func (d *Device) name(rank int) int {
	if rank < 0 || rank >= d.c.Team().Size() {
		return rank
	}
	return d.c.Team().Name(rank)
}

// watchEvery is how often the watchdog looks.
const watchEvery = 50 * time.Millisecond

// Watch starts the watchdog: nobody on the host waits for what is queued on streams, and a kernel cannot see that a
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
	var closed time.Time // since when what is queued has not ended, and a peer has closed
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		if d.c.Broken() != nil {
			d.Abort()
			continue // what is queued later ends as well
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
		told, fatal := d.told(d.status.Error.Load())
		if !fatal {
			told = d.fatal()
		}
		d.mu.Unlock()
		if told != nil {
			d.c.Fail(told)
		}
	}
}

// stuck is a peer that has closed its communicator while something queued by a client still waits for it, or -1.
func (d *Device) stuck() int {
	for _, k := range d.clients {
		if r := k.Stuck(); r >= 0 {
			return r
		}
	}
	return -1
}

// fatal is what clients say has broken the communicator, or nil. The caller holds mu.
func (d *Device) fatal() *fault.Error {
	for _, k := range d.clients {
		if e := k.Fatal(); e != nil {
			return e
		}
	}
	return nil
}

// closedGrace is how long what is queued may go on after a peer has closed: it has what it needs from that peer, or
// never will, and work of others may come before it. Less than the transport's wait for peers to unmap, and so than
// engine.CloseTimeout: what a peer that closes still holds has ended by then.
const closedGrace = 3 * time.Second

// Comm implements StreamUser.
func (d *Device) Comm() *engine.Comm { return d.c }

// Closed implements StreamUser.
func (d *Device) Closed(s *Stream) {
	d.last.CompareAndSwap(s, nil)
	d.Domain.Remove(s)
}
