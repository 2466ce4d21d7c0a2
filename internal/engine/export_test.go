package engine

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/membership"
	"github.com/ubcoll/ubcoll/internal/reason"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Refusals are the sentinels that a refusal carries to the peers.
var Refusals = func() (all []error) {
	for k := 1; reason.OfCode(k) != nil; k++ {
		all = append(all, reason.OfCode(k))
	}
	return all
}()

// ForgeSource makes this rank's descriptor of the running operation name l as its source.
func ForgeSource(t *team.Team, l mem.Location) {
	t.Me.Desc[t.Seq&1].Buffers().Src = team.BufWord{Arena: l.Arena, Slot: l.Slot, Generation: l.Generation, Offset: l.Offset}
}

// ForgeLost writes v as this rank's reason why its communicator broke.
func (c *Comm) ForgeLost(v uint64) { c.team.Me.Lost.Store(v) }

// ForgeRefusal makes this rank's next refusal claim n bytes of text, whatever the room, and an impossible code.
func (c *Comm) ForgeRefusal(n, code uint64) {
	slot := (c.team.Seq + 1) & 1 // the next operation's
	c.team.Me.Refusals[slot].N = n
	c.team.Me.Desc[slot].Refusal = code
	c.team.Me.Desc[slot].Sig = team.Signature(team.KindRefused, 0, 0, 0, 0)
	c.team.Me.Desc[slot].Seq.Store(c.team.Seq + 1)
}

// Skip pretends that n operations have run. n is even, since slots alternate.
func (c *Comm) Skip(n uint64) {
	c.team.Seq += n
	for last := range uint64(2) { // the last two, in their slots
		seq := c.team.Seq - last
		c.team.Me.Desc[seq&1].Seq.Store(seq)
		c.team.Me.Group[seq&1].Seq.Store(seq)
	}
}

// Abandon pretends that c, which Split has just made, failed on this rank alone.
func (c *Comm) Abandon(err error) error {
	c.leave(&fault.Error{Op: "split", Rank: c.rank, Peer: -1, Err: err})
	return c.abandon()
}

// Watched is how many sides of peers are checked when memory is taken back.
func (d *Domain) Watched() int {
	d.copiers.mu.Lock()
	defer d.copiers.mu.Unlock()
	return len(d.copiers.all)
}

// SplitThatFails is Split, in which this rank's part of step ends with the error of fails.
func (c *Comm) SplitThatFails(step int, fails func() error) error {
	s := splitting{parent: c, op: "split", me: member{0, -c.rank, c.rank}}
	ctx := context.Background()
	steps := s.steps(ctx, team.KindSplit)
	before := steps[step].Before
	steps[step].Before = func() ([]byte, error) {
		b, err := before()
		return b, errors.Join(err, fails())
	}
	_, err := s.run(ctx, steps)
	return err
}

// ShrinkThatEnds is Shrink, in which this rank ends at a step, as one does whose process dies then.
func (c *Comm) ShrinkThatEnds(step membership.Step) error {
	if step == membership.Idle {
		return c.Close()
	}
	if err := c.Enter(); err != nil {
		return err
	}
	c.Fail(&fault.Error{Op: "shrink", Rank: c.rank, Peer: c.rank, Err: fault.ErrAborted})
	s := c.shrinking()
	w, err := s.begin()
	for over := false; err == nil && !over && s.agreement.Mine().Step < step; c.team.Rest(w.changed) {
		over, err = s.turn(background, &w)
	}
	s.stopConnecting()
	c.turn.Leave()
	err = errors.Join(err, c.Close())
	if s.child != nil {
		s.child.ignoreNetwork()
		s.child.team.Leave()
		err = errors.Join(err, s.child.abandon())
	}
	return err
}

// ShrinkThatFails is Shrink, in which this rank fails once it has come to a step.
func (c *Comm) ShrinkThatFails(step membership.Step, why error) error {
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.turn.Leave()
	c.Fail(&fault.Error{Op: "shrink", Rank: c.rank, Peer: c.rank, Err: fault.ErrAborted})
	s := c.shrinking()
	w, err := s.begin()
	for ; ; c.team.Rest(w.changed) {
		over := false
		if err == nil {
			over, err = s.turn(background, &w)
		}
		if s.agreement.Mine().Step >= step {
			err = why
		}
		if over || err != nil {
			return s.giveUp(err)
		}
	}
}

var background = context.Background()

// CheckClosed is what the end of the domain checks, with -tags invariants.
func (d *Domain) CheckClosed() { d.checkClosed() }
