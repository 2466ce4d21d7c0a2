package engine

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Peers copy to and from what a rank has granted them without its help. Each end that can do so has a word, in memory
// of its own, with the copies that it has under way: it raises the word and then looks whether the grant still holds.
// Who takes memory back revokes the grant and then looks at the words. So either the peer sees that the grant is gone,
// or this rank sees the copy, and waits.
//
// It looks at a peer's word until the peer has closed its end, whatever has become of the end here: what the peer has
// begun goes on when this rank closes its side.

// copier is a peer's end that may copy to and from this rank's memory.
type copier struct {
	end   team.Reader
	rank  int
	under *atomic.Uint64 // copies under way
	grant *atomic.Uint64 // the generation of the grant that they are by; 0 until the end has one
}

// copying reports whether a copy by the grant g is under way.
func (k *copier) copying(g mem.Location) bool {
	return k.grant.Load() == g.Generation && k.under.Load() != 0
}

// copiers are those of a domain.
type copiers struct {
	mu     sync.Mutex
	all    []copier
	sweep  int  // how many there must be for the next look for those that are over
	closed bool // the peers' memory is not mapped any more
}

// WatchCopies has whoever takes memory back look at a peer's end, where under counts the copies under way by grant.
func (d *Domain) WatchCopies(end team.Reader, rank int, under, grant *atomic.Uint64) {
	d.copiers.watch(copier{end, rank, under, grant})
}

// watch has settle look at k.
func (ks *copiers) watch(k copier) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if len(ks.all) >= ks.sweep {
		ks.drop()
		ks.sweep = 2*len(ks.all) + 64
	}
	ks.all = append(ks.all, k)
}

// drop forgets those that are over. The caller holds mu.
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

// close ends all looks at memory of peers.
func (ks *copiers) close() {
	ks.mu.Lock()
	ks.closed, ks.all = true, nil
	ks.mu.Unlock()
}

// busy is the copiers among those given, or all if first, that have a copy by g under way.
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

// SettleTimeout is how long a peer may take for a copy that began before a grant was revoked: it looks at the grant
// after every piece. A variable for tests.
var SettleTimeout = time.Second

// settle waits until the copies by g, which has been revoked, are over; over says whether they are. The error names a
// peer that does not come to an end: it was stopped within a copy. While what is freed is quarantined anyway it does
// not wait.
func (d *Domain) settle(g mem.Location) (over bool, err error) {
	busy := d.copiers.busy(g, nil, true)
	if d.Heap.Quarantined() {
		return len(busy) == 0, nil
	}
	deadline := time.Now().Add(SettleTimeout)
	for i := 0; len(busy) > 0; i++ {
		if i%16 == 15 {
			if time.Now().After(deadline) {
				return false, fmt.Errorf("rank %d has been in the middle of a copy for %v, which may go on: %w", busy[0].rank,
					SettleTimeout, fault.ErrTimeout)
			}
			runtime.Gosched()
			shm.Yield()
			d.IPC.Look() // what has died copies no more
		}
		busy = d.copiers.busy(g, busy, false)
	}
	return true, nil
}
