package onesided

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Made returns how many channels to peer this rank has begun.
func (sp *Space) Made(peer int) uint64 {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.table == nil {
		return 0
	}
	return sp.table.made(peer).Load()
}

// Reach begins a copy of the first n bytes of peer's part; calling done ends it.
func (w *Window) Reach(peer, n int) (p unsafe.Pointer, done func() error, err error) {
	if err := begin(w); err != nil {
		return nil, nil, err
	}
	k, copies := &w.ranks[peer], &w.mine.to(peer).copying
	if p, err = k.Remote.begin(copies, 0, n, engine.RemoteRead); err != nil {
		end(w)
	}
	return p, func() error { defer end(w); copies.Add(^uint64(0)); return k.Live() }, err
}

// Live returns why peer's part must not be used any more, or nil.
func (w *Window) Live(peer int) error { return w.ranks[peer].Live() }

// WaitPolls waits until the housekeeping that would notice that the peer has closed its end. looks is how often it has
// called ready, which is once after each housekeeping.
func (ch *Channel) WaitPolls() (looks int, err error) {
	w := waiting{WaitState: team.WaitState{Op: "wait", Ctx: context.Background(), Peer: ch.peer, Step: "polls"}, c: ch.c, of: ch,
		theirs: &ch.theirs.state, sp: ch.sp}
	err = w.until(1, func() bool { looks++; return w.Polls >= team.PollsPerClock })
	return looks, err
}
