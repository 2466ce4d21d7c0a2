package engine

import (
	"context"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// drive runs an operation that consists of others: see team.Path.Drive.
//
//go:noinline
func (c *Comm) drive(ctx context.Context, w *team.Work) error {
	timed := c.Measures(w)
	began := time.Now()
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

// Pinned implements team.Comm.
func (c *Comm) Pinned() (team.Pinned, error) {
	if c.device == nil {
		return nil, c.gpuWhy
	}
	return c.device, nil
}
