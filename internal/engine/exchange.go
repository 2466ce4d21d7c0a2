package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Gathering is an all-gather of a few bytes, as an operation of the communicator: the records travel in the eager
// slots, so it costs one agreement and no call of the bootstrap.
type Gathering struct {
	Kind     team.OpKind
	Step     int  // its number within the call; all ranks must be at the same step
	HostOnly bool // records stay within the host
	// Before does this rank's part of the work before the exchange, and returns its record. All ranks return its error.
	Before func() (record []byte, err error)
	// Check checks all records; its result must be the same on all ranks. It may be nil.
	Check func(all [][]byte) (about int, err error)
	// After gets the records if nothing failed. It may be nil.
	After func(all [][]byte)
	// Failed is called if the gathering failed. It may be nil.
	Failed func(error)

	record []byte
}

// Work returns the gathering as an operation.
func (g *Gathering) Work() team.Work {
	p := &team.Path{
		Name:  "exchange",
		Ended: g.Failed,
		Acquire: func(t *team.Team, _ *team.Work) (err error) {
			if g.record, err = g.Before(); err == nil && len(g.record) > g.most(t) {
				err = fmt.Errorf("a record of %d bytes, more than %d: %w", len(g.record), g.most(t), fault.ErrLimit)
			}
			return err
		},
		Offer: func(t *team.Team, _ *team.Work) {
			t.PutRecord(g.record)
		},
		Check: func(t *team.Team, _ *team.Work) (int, error) {
			all, about, err := g.records(t)
			if err == nil && g.Check != nil {
				about, err = g.Check(all)
			}
			if err == nil && g.After != nil {
				g.After(all)
			}
			return about, err
		},
	}
	if !g.HostOnly {
		p.Contribute, p.Conclude = g.contribute, hosts.LeaveRecords
	}
	return team.Work{Kind: g.Kind, Type: dtype.Uint8, Count: g.Step, Path: p}
}

// most is how long a record may be.
func (g *Gathering) most(t *team.Team) int {
	if t.Hosts == nil || g.HostOnly {
		return team.MaxRecord
	}
	return min(team.MaxRecord, hosts.MostRecord(t))
}

// contribute writes the records of this host's ranks to b, for the other hosts.
func (g *Gathering) contribute(t *team.Team, _ *team.Work, b []byte) int {
	b = b[:0]
	for r := range t.Size() {
		b = hosts.AppendRecord(b, t.Name(r), t.Record(r))
	}
	return len(b)
}

// records returns copies, because the slots are reused. If Here is set, records of other hosts are nil.
func (g *Gathering) records(t *team.Team) ([][]byte, int, error) {
	if t.Hosts != nil && !g.HostOnly {
		return hosts.Records(t)
	}
	all := make([][]byte, t.Whole())
	for r := range t.Size() {
		all[t.Name(r)] = append([]byte{}, t.Record(r)...)
	}
	return all, -1, nil
}

// Exchange gathers mine from all ranks, in rank order. Collective; it is an operation of its own. If a rank has an
// error, own, instead, all ranks return it.
func (c *Comm) Exchange(ctx context.Context, kind team.OpKind, mine []byte, own error) (all [][]byte, err error) {
	g := Gathering{Kind: kind, Before: func() ([]byte, error) { return mine, own },
		After: func(records [][]byte) { all = records }}
	return all, c.Gather(ctx, &g)
}

// Gather runs gatherings in order, in one turn, up to the first that fails, which fails on all ranks.
func (c *Comm) Gather(ctx context.Context, gs ...*Gathering) error {
	ctx = Context(ctx)
	if err := c.Barred(&team.Work{}, gs[0].Kind.String()); err != nil {
		return err
	}
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.turn.Leave()
	for i, g := range gs {
		g.Step = i
		c.team.Work = g.Work()
		if err := c.runOwn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// WithCleanup joins err and the error of the cleanup after it.
func WithCleanup(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return errors.Join(err, cleanup)
}
