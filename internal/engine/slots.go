package engine

import (
	"fmt"

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
	if l.mine.state.Load() != stateClosed {
		return false
	}
	gone := false
	if l.theirs == nil {
		l.theirs, gone, _ = l.c.otherEnd(l)
	}
	p := &l.c.peers[l.peer]
	there := reader{state: &p.area.state, mem: p.mem, at: p.at}
	gone = gone || l.theirs != nil && (l.theirs.key.Load() != l.otherKey() || l.theirs.state.Load() == stateClosed)
	if !gone && !there.done() {
		return false
	}
	l.mine.key.Store(0)
	return true
}
