package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/hosts"
	"github.com/ubcoll/ubcoll/internal/team"
)

// maxRecord is how many bytes a rank can put into one exchange.
const maxRecord = team.EagerBytes - 8

// Gathering is an all-gather of a few bytes, as an operation of the communicator: the records travel in the eager
// slots, so that it costs one agreement and nothing of the bootstrap.
type Gathering struct {
	Kind team.OpKind
	Step int  // of the call that it is part of: all ranks must be at the same
	Here bool // records are for the ranks of the same host only
	// Before is this rank's part of what comes first, and its record. Its error is returned by all ranks.
	Before func() (record []byte, err error)
	// Check looks at all records; its verdict must be the same on all ranks. Or nil.
	Check func(all [][]byte) (about int, err error)
	// After takes the records when all is well.
	After func(all [][]byte)
	// Failed is called when it has failed, or nil.
	Failed func(error)

	record []byte
}

// Work is the gathering as an operation.
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
			b := eagerSlot(t, t.Rank())
			binary.LittleEndian.PutUint64(b, uint64(len(g.record)))
			copy(b[8:], g.record)
		},
		Contribute: g.contribute,
		Conclude:   g.conclude,
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
	return team.Work{Kind: g.Kind, Type: dtype.Uint8, Count: g.Step, Path: p}
}

// most is how long a record may be: those of all hosts' ranks go through staging memory of the team's first rank.
func (g *Gathering) most(t *team.Team) int {
	if t.Hosts == nil || g.Here {
		return maxRecord
	}
	return min(maxRecord, hosts.MaxBlocks/t.Hosts.Ranks()-recordHead)
}

// recordHead is what records of other hosts have before them: rank and length.
const recordHead = 8

// contribute leaves the records of this host's ranks.
func (g *Gathering) contribute(t *team.Team, _ *team.Work, b []byte) (n int) {
	if g.Here {
		return 0
	}
	for r := range t.Size() {
		s := eagerSlot(t, r)
		k := int(min(binary.LittleEndian.Uint64(s), uint64(g.most(t)))) // who shows more refuses
		binary.LittleEndian.PutUint32(b[n:], uint32(t.Name(r)))
		binary.LittleEndian.PutUint32(b[n+4:], uint32(k))
		n += recordHead + copy(b[n+recordHead:], s[8:8+k])
	}
	return n
}

// conclude leaves those of all hosts for the team.
func (g *Gathering) conclude(t *team.Team, _ *team.Work, all func(host int) []byte) {
	if g.Here {
		return
	}
	b := unsafe.Slice((*byte)(t.Staging(t.Rank())), team.StagingBytes)
	n := 8
	for h := range t.Hosts.Size() {
		n += copy(b[n:], all(h))
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
}

func eagerSlot(t *team.Team, rank int) []byte {
	return unsafe.Slice((*byte)(t.Eager(rank)), team.EagerBytes)
}

// records are copies: the slots are used again. By rank of the communicator, and those of other hosts are nil if Here.
func (g *Gathering) records(t *team.Team) ([][]byte, int, error) {
	if t.Hosts != nil && !g.Here {
		return recordsOfAll(t)
	}
	all := make([][]byte, t.Whole())
	for i := range t.Size() {
		b, r := eagerSlot(t, i), t.Name(i)
		n := binary.LittleEndian.Uint64(b)
		if n > maxRecord {
			return nil, r, fmt.Errorf("a record of %d bytes: %w", n, fault.ErrMismatch)
		}
		all[r] = append([]byte{}, b[8:8+n]...)
	}
	return all, -1, nil
}

// recordsOfAll reads what conclude has left.
func recordsOfAll(t *team.Team) ([][]byte, int, error) {
	all := make([][]byte, t.Whole())
	b := unsafe.Slice((*byte)(t.Staging(0)), team.StagingBytes)
	b = append([]byte{}, b[8:max(8, min(binary.LittleEndian.Uint64(b), team.StagingBytes))]...)
	for len(b) >= recordHead {
		r, n := int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
		if b = b[recordHead:]; r >= len(all) || all[r] != nil || n > len(b) {
			break
		}
		all[r], b = b[:n:n], b[n:]
	}
	for r := range all {
		if all[r] == nil {
			return nil, r, fmt.Errorf("no record of rank %d: %w", r, fault.ErrMismatch)
		}
	}
	return all, -1, nil
}

// Exchange gathers mine from all ranks, in rank order. Collective; it is an operation of its own. If a rank has an own
// error instead, all ranks return it.
func (c *Comm) Exchange(ctx context.Context, kind team.OpKind, mine []byte, own error) (all [][]byte, err error) {
	g := Gathering{Kind: kind, Before: func() ([]byte, error) { return mine, own },
		After: func(records [][]byte) { all = records }}
	return all, c.Gather(ctx, &g)
}

// Gather does gatherings in order, in one turn, up to the first that fails: that one fails on all ranks.
func (c *Comm) Gather(ctx context.Context, gs ...*Gathering) error {
	ctx = Context(ctx)
	if err := c.Barred(&team.Work{}, gs[0].Kind.String()); err != nil {
		return err
	}
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.turn.leave()
	for i, g := range gs {
		g.Step = i
		c.team.Work = g.Work()
		if err := c.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// WithCleanup is err, and what the cleanup after it said.
func WithCleanup(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return errors.Join(err, cleanup)
}
