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
// This rank reads a peer's word until the peer has closed its end, even after its own end has closed: a copy that the
// peer has begun goes on when this rank closes its side.

// copier is a peer's end that may copy to and from this rank's memory.
type copier struct {
	end   team.Reader
	rank  int
	under *atomic.Uint64 // copies under way
	grant *atomic.Uint64 // the generation of the grant that they use; 0 until the end has one
}

// copying reports whether a copy that uses grant g is under way.
func (k *copier) copying(g mem.Location) bool {
	return k.grant.Load() == g.Generation && k.under.Load() != 0
}

// copiers are the copiers of a domain.
type copiers struct {
	mu     sync.Mutex
	all    []copier
	sweep  int  // the length of all at which the next drop is due
	closed bool // the peers' memory is not mapped any more
}

// WatchCopies makes settle check a peer's end, where under counts the copies under way that use grant.
func (d *Domain) WatchCopies(end team.Reader, rank int, under, grant *atomic.Uint64) {
	d.copiers.watch(copier{end, rank, under, grant})
}

// watch makes settle check k.
func (ks *copiers) watch(k copier) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if len(ks.all) >= ks.sweep {
		ks.drop()
		ks.sweep = 2*len(ks.all) + 64
	}
	ks.all = append(ks.all, k)
}

// drop forgets copiers whose ends are done. The caller holds mu.
func (ks *copiers) drop() {
	rest := ks.all[:0]
	for _, k := range ks.all {
		if !k.end.Done() {
			rest = append(rest, k)
		}
	}
	clear(ks.all[len(rest):])
	ks.all = rest
}

// close stops all reads of peers' memory.
func (ks *copiers) close() {
	ks.mu.Lock()
	ks.closed, ks.all = true, nil
	ks.mu.Unlock()
}

// busy returns the copiers among some, or among all if first is set, that have a copy using g under way.
func (ks *copiers) busy(g mem.Location, some []copier, first bool) (rest []copier) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if ks.closed {
		return nil
	}
	rest = some[:0]
	if first {
		ks.drop()
		some = ks.all
	}
	for _, k := range some {
		if k.copying(g) && !k.end.Done() {
			rest = append(rest, k)
		}
	}
	return rest
}

// settle waits until the copies that use g, which has been revoked, are over, and reports whether they are. The error
// names a peer whose copy does not end: the peer was stopped within it. While freed memory is quarantined anyway,
// settle does not wait.
func (d *Domain) settle(g mem.Location) (over bool, err error) {
	busy := d.copiers.busy(g, nil, true)
	if d.Heap.Quarantined() {
		return len(busy) == 0, nil
	}
	deadline := clock.In(d.settleTimeout)
	for i := 0; len(busy) > 0; i++ {
		if i%16 == 15 {
			if deadline.Passed() {
				return false, fmt.Errorf("rank %d has been in the middle of a copy for %v, which may go on: %w", busy[0].rank,
					d.settleTimeout, fault.ErrTimeout)
			}
			runtime.Gosched()
			shm.Yield()
			d.IPC.Look() // dead peers no longer copy
		}
		busy = d.copiers.busy(g, busy, false)
	}
	return true, nil
}
