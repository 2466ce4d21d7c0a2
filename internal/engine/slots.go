package engine

import (
	"fmt"

	"github.com/ubcoll/ubcoll/internal/team"

	"github.com/ubcoll/ubcoll/internal/fault"
)

// occupant has a slot: a link, or a window for its end towards one rank.
type occupant interface {
	// left reports whether neither end needs the slot any more. The caller holds nouns.mu.
	left() bool
}

var errSlots = fmt.Errorf("%d channels are open, or closed on one side only (close both), and windows on devices "+
	"count once for each rank: %w", maxLinks, fault.ErrLimit)

// freeSlot is a slot that nobody needs, or -1. The caller holds mu.
func (ns *nouns) freeSlot() int {
	free := -1
	for i, u := range ns.used {
		if u != nil && u.left() {
			ns.used[i] = nil
		}
		if ns.used[i] == nil && free < 0 {
			free = i
		}
	}
	return free
}

// left reports whether both ends have closed the link: the other end's slot has gone on to another link, then, or says
// so.
func (l *Link) left() bool {
	if l.mine.state.Load() != team.StateClosed {
		return false
	}
	gone := false
	if l.theirs == nil {
		l.theirs, gone, _ = l.c.otherEnd(l)
	}
	p := &l.c.team.Peers[l.peer]
	there := team.Reader{State: &p.Area.State, Mem: p.Mem, At: p.At}
	gone = gone || l.theirs != nil && (l.theirs.key.Load() != l.otherKey() || l.theirs.state.Load() == team.StateClosed)
	if !gone && !there.Done() {
		return false
	}
	l.mine.key.Store(0)
	return true
}
