package engine

import (
	"fmt"

	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// Operations on host memory and on devices are counted apart, and neither kind sees the other: a call that is one on
// some ranks and the other on the rest would end at its deadline. But ranks that make the same calls in the same order
// are never ahead of each other in one count and behind in the other. So whoever waits long compares the counts, which
// are words of the areas.

// uncounted in area.queued: somebody captures this rank's operations on the device, and replays them as he likes.
const uncounted = 1 << 63

// count publishes that n more collectives have been queued on the device. It is this communicator's turn.
func (d *device) count(n uint64) {
	d.collectives += n
	spin.Release(&d.c.me.queued, d.collectives|d.uncounted)
}

// published is how many operations on host memory the rank has published.
func (a *area) published() uint64 {
	s, t := a.desc[0].seq.Load(), a.desc[1].seq.Load()
	if reached(s, t) {
		return s
	}
	return t
}

// crossed reports whether rank a has operations on its device that b has not, and b such on host memory that a has not.
// Both go on meanwhile: of each rank, what it must be ahead in is read first.
func crossed(a, b *area) bool {
	queued, published := a.queued.Load(), b.published()
	behind, less := a.published(), b.queued.Load()
	return (queued|less)&uncounted == 0 && queued > less && !reached(behind, published)
}

// diverged is about a rank that has called on host memory what this one has called on its device, or the other way
// round; nil if there is none.
func (c *Comm) diverged(s *waiting) *fault.Error {
	if c.device == nil {
		return nil
	}
	for r := range c.peers {
		host := r
		switch p := c.peers[r].area; {
		case r == c.rank:
			continue
		case crossed(p, c.me):
			host = c.rank
		case !crossed(c.me, p):
			continue
		}
		return c.errorAt(s, r, fmt.Errorf("rank %d has called on host memory what rank %d has called on its device: %w",
			host, r+c.rank-host, fault.ErrMismatch))
	}
	return nil
}
