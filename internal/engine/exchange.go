package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// maxRecord is how many bytes a rank can put into one exchange.
const maxRecord = team.EagerBytes - 8

// gathering is an all-gather of a few bytes, as an operation of the communicator: the records travel in the eager
// slots, so that it costs one agreement and nothing of the bootstrap.
type gathering struct {
	kind team.Kind
	step int // of the call that it is part of: all ranks must be at the same
	// before is this rank's part of what comes first, and its record. Its error is returned by all ranks.
	before func() (record []byte, err error)
	// check looks at all records; its verdict must be the same on all ranks. Or nil.
	check func(all [][]byte) (about int, err error)
	// after takes the records when all is well.
	after func(all [][]byte)
	// failed is called when it has failed, or nil.
	failed func(error)

	record []byte
}

// work is the gathering as an operation.
func (g *gathering) work() team.Work {
	return team.Work{Kind: g.kind, Type: dtype.Uint8, Count: g.step, Path: &team.Path{
		Name:  "exchange",
		Ended: g.failed,
		Acquire: func(*team.Team, *team.Work) (err error) {
			if g.record, err = g.before(); err == nil && len(g.record) > maxRecord {
				err = fmt.Errorf("a record of %d bytes, more than %d: %w", len(g.record), maxRecord, fault.ErrLimit)
			}
			return err
		},
		Offer: func(t *team.Team, _ *team.Work) {
			b := eagerSlot(t, t.Rank())
			binary.LittleEndian.PutUint64(b, uint64(len(g.record)))
			copy(b[8:], g.record)
		},
		Check: func(t *team.Team, _ *team.Work) (int, error) {
			all, about, err := g.records(t)
			if err == nil && g.check != nil {
				about, err = g.check(all)
			}
			if err == nil && g.after != nil {
				g.after(all)
			}
			return about, err
		},
	}}
}

func eagerSlot(t *team.Team, rank int) []byte {
	return unsafe.Slice((*byte)(t.Eager(rank)), team.EagerBytes)
}

// records are copies: the slots are used again.
func (g *gathering) records(t *team.Team) ([][]byte, int, error) {
	all := make([][]byte, t.Size())
	for r := range all {
		b := eagerSlot(t, r)
		n := binary.LittleEndian.Uint64(b)
		if n > maxRecord {
			return nil, r, fmt.Errorf("a record of %d bytes: %w", n, fault.ErrMismatch)
		}
		all[r] = append([]byte{}, b[8:8+n]...)
	}
	return all, -1, nil
}

// Exchange gathers mine from all ranks, in rank order. Collective; it is an operation of its own. If a rank has an own
// error instead, all ranks return it.
func (c *Comm) Exchange(ctx context.Context, kind team.Kind, mine []byte, own error) (all [][]byte, err error) {
	g := gathering{kind: kind, before: func() ([]byte, error) { return mine, own },
		after: func(records [][]byte) { all = records }}
	return all, c.steps(ctx, &g)
}

// steps does gatherings in order, in one turn, up to the first that fails: that one fails on all ranks.
func (c *Comm) steps(ctx context.Context, gs ...*gathering) error {
	ctx = Context(ctx)
	if err := c.barred(&team.Work{}, gs[0].kind.String()); err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.turn.leave()
	for i, g := range gs {
		g.step = i
		c.team.Work = g.work()
		if err := c.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// also is err, and what the cleanup after it said.
func also(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return errors.Join(err, cleanup)
}
