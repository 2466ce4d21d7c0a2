package team

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
)

// Operations on host memory and on devices are counted apart, and neither kind sees the other: a call that is one on
// some ranks and the other on the rest would end at its deadline. But ranks that make the same calls in the same order
// are never ahead of each other in one count and behind in the other. So whoever waits long compares the counts, which
// are words of the areas.

// Uncounted in Area.queued: somebody captures this rank's operations on the device, and replays them as he likes.
const Uncounted = 1 << 63

// PublishQueued publishes how many collectives this rank has queued on its device, or that this cannot be told.
func (t *Team) PublishQueued(total uint64) { spin.Release(&t.Me.queued, total) }

// published is how many operations on host memory the rank has published.
func (a *Area) published() uint64 {
	s, t := a.Desc[0].Seq.Load(), a.Desc[1].Seq.Load()
	if Reached(s, t) {
		return s
	}
	return t
}

// crossed reports whether rank a has operations on its device that b has not, and b such on host memory that a has not.
// Both go on meanwhile: of each rank, what it must be ahead in is read first.
func crossed(a, b *Area) bool {
	queued := a.queued.Load()
	if queued == 0 { // no device; the words of operations on host memory are their writers' alone meanwhile
		return false
	}
	published := b.published()
	behind, less := a.published(), b.queued.Load()
	return (queued|less)&Uncounted == 0 && queued > less && !Reached(behind, published)
}

// diverged is about a rank that has called on host memory what this one has called on its device, or the other way
// round; nil if there is none.
func (t *Team) diverged(s *WaitState) *fault.Error {
	for r := range t.Peers {
		host := r
		switch p := t.Peers[r].Area; {
		case r == t.rank:
			continue
		case crossed(p, t.Me):
			host = t.rank
		case !crossed(t.Me, p):
			continue
		}
		return t.errorAt(s, t.Name(r), fmt.Errorf("rank %d has called on host memory what rank %d has called on its "+
			"device: %w", t.Name(host), t.Name(r+t.rank-host), fault.ErrMismatch))
	}
	return nil
}
