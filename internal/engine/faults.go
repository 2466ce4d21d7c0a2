package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/faults"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tracing"
)

// badFaults returns what is wrong with UBCOLL_FAULT in a job of b, or nil. env.Validate reports what cannot be read.
func badFaults(b bootstrap.Bootstrap) error {
	all, err := env.Fault.Get()
	if err != nil {
		return nil
	}
	var errs []error
	for _, f := range all {
		if f.Rank >= b.Size() {
			errs = append(errs, fmt.Errorf("entry %q: rank %d of a job of %d ranks, from 0: %w", f.String(), f.Rank, b.Size(),
				fault.ErrArgument))
		}
	}
	if err = errors.Join(append(errs, faults.Check(all, b.Rank()))...); err != nil {
		return fmt.Errorf("%s=%q: %w", env.Fault.Name, os.Getenv(env.Fault.Name), err)
	}
	return nil
}

// armFaults begins to make happen what UBCOLL_FAULT asks of this rank.
func (d *Domain) armFaults() {
	all, err := env.Fault.Get()
	if err != nil { // badFaults has seen none
		return
	}
	var cut func() error
	if d.network != nil {
		cut = d.network.Cut
	}
	d.faults = faults.Arm(all, d.rank, d.log, cut)
}

// beforeOperations is what each operation of this rank calls before it begins; nil: nothing.
func (d *Domain) beforeOperations() func() {
	if d.faults == nil {
		return nil
	}
	return d.faults.Begin
}

// trace tells the tracer, which there is, that w runs.
//
//go:noinline
func (c *Comm) trace(ctx context.Context, w *team.Work) tracing.Span {
	if c.counts(w) {
		c.Tracer.Count()
	}
	return c.Tracer.Mark(ctx, w.Kind.String())
}

// counts reports whether w, which runs, is an operation by itself: neither a part of a group or launch, nor a later step of a
// call that makes something.
func (c *Comm) counts(w *team.Work) bool {
	switch w.Kind {
	case team.KindSplit, team.KindDup, team.KindWindow, team.KindCapture:
		return !c.inGroup && w.Count == 0 // see Gathering.Step
	case team.KindOpen:
		return false
	}
	return !c.inGroup
}
