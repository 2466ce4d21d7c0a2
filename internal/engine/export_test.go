package engine

import (
	"context"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/internal/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// ReportAfter sets the time after which a wait is reported, and returns what restores it.
func ReportAfter(d time.Duration) (restore func()) {
	old := team.ReportAfter.Swap(int64(d))
	return func() { team.ReportAfter.Store(old) }
}

// Published reports whether this rank has published its n-th operation.
func (c *Comm) Published(n uint64) bool { return team.Reached(c.team.Me.Desc[n&1].Seq.Load(), n) }

// Vouched reports whether this rank, a leader, has said of its n-th operation that its group is there.
func (c *Comm) Vouched(n uint64) bool { return team.Reached(c.team.Me.Group[n&1].Seq.Load(), n) }

// Refusals are the sentinels that a refusal carries to the peers.
var Refusals = func() (all []error) {
	for k := 1; fault.OfCode(k) != nil; k++ {
		all = append(all, fault.OfCode(k))
	}
	return all
}()

// ForgeSource makes this rank's descriptor of the running operation name l as its source.
func ForgeSource(t *team.Team, l mem.Location) {
	t.Me.Desc[t.Seq&1].Buffers().Src = team.BufWord{Arena: l.Arena, Slot: l.Slot, Generation: l.Generation, Offset: l.Offset}
}

// ForgeLost writes v where this rank says why its communicator broke.
func (c *Comm) ForgeLost(v uint64) { c.team.Me.Lost.Store(v) }

// ForgeRefusal makes this rank's refusal n bytes long, whatever there is room for, and its code what it never is.
func (c *Comm) ForgeRefusal(n, code uint64) {
	slot := (c.team.Seq + 1) & 1 // the next operation's
	c.team.Me.Refusals[slot].N = n
	c.team.Me.Desc[slot].Refusal = code
	c.team.Me.Desc[slot].Sig = team.Signature(team.KindRefused, 0, 0, 0, 0)
	c.team.Me.Desc[slot].Seq.Store(c.team.Seq + 1)
}

// Skip is as if n operations had been done.
func (c *Comm) Skip(n uint64) { c.team.Seq += n }

// Channels is how many channels to peer this rank has begun.
func (c *Comm) Channels(peer int) uint64 {
	sp := SpaceOf(c)
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.table == nil {
		return 0
	}
	return sp.table.made(peer).Load()
}

// Reach begins a copy of the first n bytes of peer's part; done ends it.
func (w *Window) Reach(peer, n int) (p unsafe.Pointer, done func() error, err error) {
	if err := begin(w); err != nil {
		return nil, nil, err
	}
	k, copies := &w.ranks[peer], &w.mine.to(peer).copying
	if p, err = k.Remote.begin(copies, 0, n); err != nil {
		end(w)
	}
	return p, func() error { defer end(w); copies.Add(^uint64(0)); return k.live() }, err
}

// Live is why peer's part must not be used any more, or nil.
func (w *Window) Live(peer int) error { return w.ranks[peer].live() }

// WaitPolls waits for what comes during the housekeeping after which the peer's end is found.
func (ch *Channel) WaitPolls() error {
	w := waiting{team.Waiting{Op: "wait", Ctx: context.Background(), Peer: ch.peer, Step: "polls"}, ch.c, ch,
		&ch.theirs.state}
	return w.until(1, func() bool { return w.Polls >= team.PollsPerClock })
}

// Live is why the memory must not be used any more, or nil.
func (m *Remote) Live() error { return m.live() }

// ForgeClosed is as if this rank were about to close, until the result is called.
func (c *Comm) ForgeClosed() (open func()) {
	c.team.Leave()
	return func() { c.team.Me.State.Store(team.StateOpen) }
}

// Abandon is as if c, which Split has just made, had failed on this rank alone.
func (c *Comm) Abandon(err error) error {
	c.leave(&fault.Error{Op: "split", Rank: c.rank, Peer: -1, Err: err})
	return c.abandon()
}

// CheckRanksOn is CheckRanks on a machine with so much free memory and so many mappings for a process.
var CheckRanksOn = checkRanks
