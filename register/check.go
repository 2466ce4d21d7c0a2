package register

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// This file has the checks of builds with -tags invariants.

// checkedAlways is up to how many claims every change is checked; with more, one change in so many is.
const checkedAlways = 256

// check checks that the indexes, the queue, the extents and what the cache counts of them agree, and that local and graph
// references are counted apart. The caller holds the mutex.
func (c *Cache) check() {
	if c.regions > checkedAlways && (c.made+c.over)%checkedAlways != 0 {
		return
	}
	indexed := map[*extent]int{}
	n := 0
	c.local.ascend(0, maxAddr, func(cl *Claim) bool {
		if !cl.inLocal() {
			invariants.Violated("%v is in the local index, with %d local references, and is not automatic", cl, cl.local)
		}
		c.checkClaim(cl)
		indexed[cl.ext]++
		n++
		return true
	})
	if n != c.local.n {
		invariants.Violated("the local index has %d claims, and counts %d", n, c.local.n)
	}
	n = 0
	c.graph.ascend(0, maxAddr, func(cl *Claim) bool {
		if cl.graph == 0 {
			invariants.Violated("%v is in the graphs' index without a graph's reference", cl)
		}
		if !cl.inLocal() {
			c.checkClaim(cl)
			indexed[cl.ext]++
		}
		n++
		return true
	})
	if n != c.graph.n {
		invariants.Violated("the graphs' index has %d claims, and counts %d", n, c.graph.n)
	}
	for i := range c.queue {
		if cl := c.queue[i].cl; int(cl.lru) != i+1 || cl.local+cl.graph != 0 {
			invariants.Violated("%v is automatic number %d, and says %d, with %d local references and %d of graphs", cl, i+1, cl.lru,
				cl.local, cl.graph)
		}
	}
	claims, live, pinned := 0, 0, int64(0)
	count := func(e *extent) {
		if e.claims < indexed[e] || e.pending < 0 {
			invariants.Violated("%v has %d claims, and counts %d, %d of them registering", e.mem, indexed[e], e.claims, e.pending)
		}
		if claims += e.claims; e.claims > 0 {
			live++
			pinned += e.pinned
		}
	}
	for _, e := range c.extents {
		count(e)
	}
	for _, e := range c.leaving {
		count(e)
	}
	if claims != c.regions || live != c.live || pinned != c.pinned || c.places.n != len(c.extents) {
		invariants.Violated("%d claims in %d extents of %d bytes, of %d extents, are counted as %d in %d of %d, of %d", claims, live,
			pinned, len(c.extents), c.regions, c.live, c.pinned, c.places.n)
	}
}

// checkClaim checks a claim that is in an index.
func (c *Cache) checkClaim(cl *Claim) {
	cl.checkReferences()
	switch e := cl.ext; {
	case cl.state.Load()&closing != 0 || cl.ended.Load():
		invariants.Violated("%v has been closed, and lookups find it", cl)
	case e.gone.Load() || c.extents[e.mem.ID] != e:
		invariants.Violated("the memory of %v is gone, and lookups find it", cl)
	case cl.start < e.place.start || cl.end > e.place.end || cl.start >= cl.end:
		invariants.Violated("%v is not in its memory", cl)
	}
}

func (cl *Claim) checkReferences() {
	if cl.local < 0 || cl.graph < 0 {
		invariants.Violated("%v has %d local references and %d of graphs", cl, cl.local, cl.graph)
	}
}

// checkClosed checks that a closed cache finds nothing. The caller holds the mutex.
func (c *Cache) checkClosed() {
	if c.local.n+c.graph.n+c.places.n+len(c.queue) > 0 {
		invariants.Violated("closed, the cache has %d claims, %d of graphs, %d of them automatic, in %d extents", c.local.n,
			c.graph.n, len(c.queue), c.places.n)
	}
}

// poison makes e, which has been deregistered, useless: a claim that was released has no handle any more.
func (e *extent) poison() {
	for i := range e.states {
		e.states[i] = state{err: fmt.Errorf("%v: it has been deregistered: %w", e.mem, fault.ErrStale)}
	}
}
