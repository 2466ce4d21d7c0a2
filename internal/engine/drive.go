package engine

import (
	"context"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/flight"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// drive runs an operation that consists of others: see team.Path.Drive.
//
//go:noinline
func (c *Comm) drive(ctx context.Context, w *team.Work) error {
	timed := c.Measures(w)
	began := time.Now()
	c.team.Flight.Begin(flight.Entered, w.Signature(), c.team.Number()+1, max(w.Src.Bytes(), w.Dst.Bytes()), w.Path.Name, false)
	c.team.Flight.Began(flight.AtTime(began))
	err := w.Path.Drive(ctx, &c.team, w)
	if _, ok := err.(*fault.Error); err != nil && !ok { // of the device
		err = c.failed(err)
	}
	switch {
	case err == nil:
		c.note(w, w.Path.Name)
	case c.broken.Load() == nil:
		c.note(w, Refused.Name)
	}
	if timed && err == nil {
		c.NoteTook(w.Kind, c.team.Number(), time.Since(began), 0)
	}
	c.over(w, err)
	return err
}

// RunPart implements team.Comm.
func (c *Comm) RunPart(ctx context.Context, w *team.Work, first bool) error {
	if !first {
		if ctx.Err() != nil {
			return c.failed(reason.Ended(ctx))
		}
		c.team.Parts++ // it is no operation of its own
	}
	outer := c.team.Current
	c.team.Current = w
	err := c.perform(ctx, w)
	w.Release()
	if err != nil && !first {
		err = c.failed(err)
	}
	c.team.Current = outer
	return err
}

// Carry implements team.Comm.
func (c *Comm) Carry(ctx context.Context, w *team.Work) (team.Carrier, error) {
	switch {
	case c.device == nil:
		return nil, c.gpuWhy
	case c.carrier != nil:
		return c.carrier, nil
	}
	return c.device.Carry(ctx, w)
}

// RunCarried runs w, whose data k carries, in the communicator's turn, also before another operation of the same turn that has
// done nothing yet.
func (c *Comm) RunCarried(ctx context.Context, w *team.Work, k team.Carrier) error {
	outer, carrier, inGroup, fresh := c.team.Current, c.carrier, c.inGroup, c.fresh
	c.team.Current, c.carrier, c.inGroup, c.fresh = w, k, false, true
	err := c.run(ctx, w)
	c.team.Current, c.carrier, c.inGroup, c.fresh = outer, carrier, inGroup, fresh
	return err
}

// runCarried runs q's works as runAll does; its carriers carry their data.
func (c *Comm) runCarried(q *queued) (err error) {
	c.inGroup, c.fresh = q.group, q.first == 0
	done := 0
	for ; done < len(q.works) && !*q.failed && err == nil; done++ {
		c.team.Current, c.carrier = &q.works[done], q.carriers[done]
		err = c.run(q.ctx, &q.works[done])
	}
	c.team.Current, c.carrier, c.inGroup = nil, nil, false
	if err != nil {
		*q.failed = true
		return c.nameCall(err, q.first+done-1, q.all)
	}
	return nil
}
