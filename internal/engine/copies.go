package engine

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/clock"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Peers copy to and from memory that a rank has granted them, without its help. Each end that can do so counts its
// copies under way in a word of its own memory: it raises the word and then checks whether the grant still holds. A
// rank that takes memory back revokes the grant and then reads the words. So either the peer sees that the grant is
// gone, or this rank sees the copy and waits.
//
// This rank reads a peer's words until the peer has closed its side, even after its own side has closed: a copy that
// the peer has begun goes on when this rank closes its side.

// copier is a peer's side that may copy to and from this rank's memory: its part of a window, or all its channels.
type copier struct {
	side    team.Reader
	rank    int
	copying func(g mem.Location) bool // reports whether a copy that uses grant g is under way
}

// CopyWords returns a function for WatchCopies: under counts the copies under way, and grant is the generation of the
// grant that they use, or 0 until there is one.
func CopyWords(under, grant *atomic.Uint64) func(g mem.Location) bool {
	return func(g mem.Location) bool { return grant.Load() == g.Generation && under.Load() != 0 }
}

// copiers are the copiers of a domain.
type copiers struct {
	mu     sync.Mutex
	all    []copier
	sweep  int  // the length of all at which the next drop is due
	closed bool // the peers' memory is not mapped any more
}

// WatchCopies makes awaitCopies check a peer's side, where copying reports whether a copy that uses a grant is under
// way. It may be called after the side is done, as long as the peers' memory is mapped.
func (d *Domain) WatchCopies(side team.Reader, rank int, copying func(g mem.Location) bool) {
	d.copiers.watch(copier{side, rank, copying})
}

// watch makes awaitCopies check k.
func (cs *copiers) watch(k copier) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.all) >= cs.sweep {
		cs.drop()
		cs.sweep = 2*len(cs.all) + 64
	}
	cs.all = append(cs.all, k)
}

// drop forgets copiers whose sides are done. The caller holds mu.
func (cs *copiers) drop() {
	rest := cs.all[:0]
	for _, k := range cs.all {
		if !k.side.Done() {
			rest = append(rest, k)
		}
	}
	clear(cs.all[len(rest):])
	cs.all = rest
}

// close stops all reads of peers' memory.
func (cs *copiers) close() {
	cs.mu.Lock()
	cs.closed, cs.all = true, nil
	cs.mu.Unlock()
}

// busy returns the copiers among some, or among all if first is set, that have a copy using g under way.
func (cs *copiers) busy(g mem.Location, some []copier, first bool) (rest []copier) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return nil
	}
	rest = some[:0]
	if first {
		cs.drop()
		some = cs.all
	}
	for _, k := range some {
		if k.copying(g) && !k.side.Done() {
			rest = append(rest, k)
		}
	}
	return rest
}

// awaitCopies waits until the copies that use g, which has been revoked, are over, and reports whether they are. The error
// names a peer whose copy does not end: the peer was stopped within it. While freed memory is quarantined anyway,
// awaitCopies does not wait.
func (d *Domain) awaitCopies(g mem.Location) (over bool, err error) {
	busy := d.copiers.busy(g, nil, true)
	if d.Heap.Quarantined() {
		return len(busy) == 0, nil
	}
	deadline := clock.In(d.copyTimeout)
	for i := 0; len(busy) > 0; i++ {
		if i%16 == 15 {
			if deadline.Passed() {
				return false, fmt.Errorf("rank %d has been in the middle of a copy for %v, which may go on: %w", busy[0].rank,
					d.copyTimeout, fault.ErrTimeout)
			}
			runtime.Gosched()
			shm.Yield()
			d.IPC.Look() // dead peers no longer copy
		}
		busy = d.copiers.busy(g, busy, false)
	}
	return true, nil
}
