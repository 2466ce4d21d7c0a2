package register

import (
	"container/heap"
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// queue holds the automatic claims without references, as a heap ordered by the last use that the queue knows of.
// Lookups only stamp their claim. When a claim reaches the top, the queue compares the stamp, and puts the claim back
// if it was used meanwhile.
type queue []queued

type queued struct {
	cl   *Claim
	used uint64
}

// Values of Claim.lru that are not positions in the queue.
const (
	notAutomatic = 0
	held         = -1 // automatic, but references hold it
)

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].used < q[j].used || q[i].used == q[j].used && q[i].cl.start < q[j].cl.start
}
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].cl.lru, q[j].cl.lru = int32(i+1), int32(j+1)
}
func (q *queue) Push(x any) {
	*q = append(*q, x.(queued))
	x.(queued).cl.lru = int32(len(*q))
}
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = queued{}
	*q = (*q)[:len(*q)-1]
	return last
}

func (q *queue) push(cl *Claim) { heap.Push(q, queued{cl, cl.used.Load()}) }

// remove takes cl out; cl is no longer automatic.
func (q *queue) remove(cl *Claim) {
	if cl.lru > 0 {
		heap.Remove(q, int(cl.lru-1))
	}
	cl.lru = notAutomatic
}

// hold takes cl out while references hold it.
func (q *queue) hold(cl *Claim) {
	if cl.lru > 0 {
		q.remove(cl)
		cl.lru = held
	}
}

// makeRoom evicts until one more claim with bytes more fits the limits.
func (c *Cache) makeRoom(bytes int64, dead *[]*extent) error {
	most, mostBytes := c.config.MaxRegions, c.config.MaxBytes
	for {
		count := most > 0 && c.regions >= most
		size := mostBytes > 0 && bytes > 0 && bytes > mostBytes-c.pinned
		switch {
		case !count && !size:
			return nil
		case size && bytes > mostBytes || !c.evict(dead):
			limit, variable := fmt.Sprintf("%d of %d regions", c.regions, most), env.MaxRegions.Name
			if size {
				limit, variable = fmt.Sprintf("%d more bytes, %d of %d", bytes, c.pinned, mostBytes), env.MaxPinned.Name
			}
			return fmt.Errorf("%s are registered and nothing is idle and automatic: close registrations or raise %s: %w",
				limit, variable, fault.ErrLimit)
		}
	}
}

// makeRoomToLock evicts a claim, so that more memory can be locked; false if that is of no use.
func (c *Cache) makeRoomToLock() bool {
	if c.counters.locked.Load() == 0 {
		return false
	}
	var dead []*extent
	c.mu.Lock()
	evicted := c.evict(&dead)
	if invariants.Enabled {
		c.check()
	}
	c.mu.Unlock()
	c.reportErrors(deregister(dead))
	return evicted
}

// evict ends the least recently used idle automatic claim.
func (c *Cache) evict(dead *[]*extent) bool {
	var busy []*Claim
	defer func() {
		for _, cl := range busy {
			c.queue.push(cl)
		}
		if len(busy) > 0 {
			c.clock.Add(1)
		}
	}()
	for len(c.queue) > 0 {
		top := &c.queue[0]
		cl := top.cl
		if used := cl.used.Load(); used != top.used {
			top.used = used
			heap.Fix(&c.queue, 0)
			continue
		}
		c.queue.remove(cl)
		hits, ok := cl.idleClose()
		if !ok { // in use: it counts as used now
			cl.used.Store(c.clock.Load())
			busy = append(busy, cl)
			continue
		}
		c.local.remove(cl)
		c.hits += hits
		c.evictions++
		c.end(cl, dead)
		return true
	}
	return false
}
