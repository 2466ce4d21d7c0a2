package team

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
)

// Operations on host memory and on devices are counted separately, and neither kind sees the other. If some ranks make
// a call on host memory and the others make it on their devices, both would wait until the deadline. But ranks that
// make the same calls in the same order are never ahead of each other in one count and behind in the other. So a rank
// that waits long compares the counts, which are words of the areas.

// Uncounted in Area.queued means that other code has captured this rank's device operations and may replay them at
// will.
const Uncounted = 1 << 63

// PublishQueued publishes how many collectives this rank has queued on its device, or Uncounted.
func (t *Team) PublishQueued(total uint64) { spin.Release(&t.Me.queued, total) }

// published returns how many operations on host memory the rank has published.
func (a *Area) published() uint64 {
	s, t := a.Desc[0].Seq.Load(), a.Desc[1].Seq.Load()
	if Reached(s, t) {
		return s
	}
	return t
}

// crossWait reports whether rank a has operations on its device that b does not have, while b has operations on host
// memory that a does not have. Both ranks go on meanwhile, so for each rank crossWait first reads the count in which it
// must be ahead.
func crossWait(a, b *Area) bool {
	queued := a.queued.Load()
	if queued == 0 { // no device; leave the cache lines of the host words to their writers
		return false
	}
	published := b.published()
	behind, less := a.published(), b.queued.Load()
	return (queued|less)&Uncounted == 0 && queued > less && !Reached(behind, published)
}

// diverged returns an error about a rank that has called on host memory what this rank has called on its device, or the
// reverse; nil if there is none.
func (t *Team) diverged(s *WaitState) *fault.Error {
	for r := range t.Peers {
		host := r
		switch p := t.Peers[r].Area; {
		case r == t.rank:
			continue
		case crossWait(p, t.Me):
			host = t.rank
		case !crossWait(t.Me, p):
			continue
		}
		return t.errorAt(s, t.Name(r), fmt.Errorf("rank %d has called on host memory what rank %d has called on its "+
			"device: %w", t.Name(host), t.Name(r+t.rank-host), fault.ErrMismatch))
	}
	return nil
}
