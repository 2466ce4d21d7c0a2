package register

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
)

// Stats counts what a cache has done and holds.
type Stats struct {
	Hits, Misses     int64         // lookups that found a claim, or found none
	Registrations    int64         // claims made
	Deregistrations  int64         // claims that ended, after their last use
	Evictions        int64         // automatic claims among them that were evicted
	BackendFailures  int64         // errors of backends other than "not supported"
	Regions, Extents int           // claims and backend registrations alive
	RegisteredBytes  int64         // the extents' bytes, rounded to pages
	PinnedBytes      int64         // the part of RegisteredBytes that is pinned: locked in memory
	RegisterTime     time.Duration // total time in the backends
	DeregisterTime   time.Duration

	NET, NVLS, COLLNET, IPC BackendStats // by kind; zero where there is no such backend
}

// BackendStats counts what a backend has done and holds.
type BackendStats struct {
	Complete    int   // allocations that are registered now
	Registered  int64 // registrations that succeeded
	Unsupported int64 // refusals of memory that it cannot use
	Failures    int64 // other errors, of registering and deregistering
}

// Stats adds up the counters. It walks over all claims; registrations wait meanwhile, lookups do not. Concurrent calls
// may be counted in part.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{
		Hits: c.hits, Misses: c.counters.misses.Load(), Registrations: c.made, Deregistrations: c.over,
		Evictions: c.evictions, BackendFailures: c.counters.failures.Load(),
		Regions: c.regions, Extents: c.live, RegisteredBytes: c.pinned, PinnedBytes: c.counters.locked.Load(),
		RegisterTime:   time.Duration(c.counters.registerTime.Load()),
		DeregisterTime: time.Duration(c.counters.deregisterTime.Load()),
	}
	for k, to := range [kinds]*BackendStats{&s.NET, &s.NVLS, &s.COLLNET, &s.IPC} {
		from := &c.counters.kinds[k]
		*to = BackendStats{Complete: int(from.complete.Load()), Registered: from.registered.Load(),
			Unsupported: from.unsupported.Load(), Failures: from.failures.Load()}
	}
	c.local.ascend(0, maxAddr, func(cl *Claim) bool {
		s.Hits += int64(cl.state.Load() >> hitShift)
		return true
	})
	c.graph.ascend(0, maxAddr, func(cl *Claim) bool {
		if !cl.inLocal() {
			s.Hits += int64(cl.state.Load() >> hitShift)
		}
		return true
	})
	return s
}

// Explain says in a few lines why lookups of the n bytes at addr hit or miss.
func (c *Cache) Explain(addr uintptr, n int) string {
	var b strings.Builder
	start, end := uint64(addr), uint64(addr)+uint64(n)
	if n <= 0 || start >= maxAddr || end > maxAddr {
		return fmt.Sprintf("%d bytes at %#x: miss: no such range", n, addr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&b, "%s: ", span(start, end))
	local, graph := c.local.containing(start, end), c.graph.containing(start, end)
	switch {
	case c.closed:
		b.WriteString("miss: the cache is closed\n")
		return b.String()
	case local != nil:
		b.WriteString("hit\n")
		c.describe(&b, local)
	case graph != nil:
		b.WriteString("miss: only a graph holds it\n")
		c.describe(&b, graph)
	default:
		b.WriteString("miss: no claim contains it\n")
		c.describeNear(&b, start, end)
	}
	c.describeExtent(&b, start, end)
	return b.String()
}

// containing is the claim that contains [start, end), the last to start if there are several, or nil. The caller holds
// the cache's mutex.
func (ix *index) containing(start, end uint64) *Claim {
	cl := ix.stab(&query{addr: start, end: end})
	if cl != nil {
		cl.state.Add(minus(oneHit | oneUse)) // explaining counts neither as a use nor as a hit
	}
	return cl
}

func (c *Cache) describe(b *strings.Builder, cl *Claim) {
	fmt.Fprintf(b, "  claim %v: local %d, graph %d, in flight %d", cl, cl.local, cl.graph, cl.inFlight())
	if cl.lru != notAutomatic {
		b.WriteString(", automatic")
	}
	b.WriteString("\n")
}

// describeNear describes the nearest claims on both sides: how far they are, and whether they share a page.
func (c *Cache) describeNear(b *strings.Builder, start, end uint64) {
	before, after := c.local.nearest(start), c.local.after(start)
	if before == after {
		before = nil // all claims start after it
	}
	for _, cl := range []*Claim{before, after} {
		if cl == nil {
			continue
		}
		var where string
		switch {
		case cl.start > start && cl.start >= end:
			where = fmt.Sprintf("begins %d bytes after it", cl.start-end)
		case cl.start > start:
			where = fmt.Sprintf("begins %d bytes into it", cl.start-start)
		case cl.end > start:
			where = fmt.Sprintf("ends %d bytes before its end", end-cl.end)
		default:
			where = fmt.Sprintf("ends %d bytes before it", start-cl.end)
		}
		if c.samePage(cl, start, end) {
			where += ", on the same page: only exact bytes hit"
		}
		fmt.Fprintf(b, "  nearest claim %v %s\n", cl, where)
	}
}

// samePage reports whether some page has bytes of cl and of [start, end).
func (c *Cache) samePage(cl *Claim, start, end uint64) bool {
	page := c.pageSize - 1
	return cl.start&^page <= (end-1)|page && start&^page <= (cl.end-1)|page
}

// after is the first claim that starts after addr, or nil. The caller holds the cache's mutex.
func (ix *index) after(addr uint64) (found *Claim) {
	ix.ascend(addr+1, maxAddr, func(cl *Claim) bool {
		found = cl
		return false
	})
	return found
}

// describeExtent describes the allocations there, and what the backends made of them.
func (c *Cache) describeExtent(b *strings.Builder, start, end uint64) {
	places := c.overlapping(start, end)
	if len(places) == 0 {
		b.WriteString("  no memory there was registered\n")
	}
	for _, p := range places {
		e := p.ext
		fmt.Fprintf(b, "  %v at %s, %d claims", e.mem, span(p.start, p.end), len(c.claimsOf(e)))
		if n := e.claims - len(c.claimsOf(e)); n > 0 {
			fmt.Fprintf(b, " and %d more that are closed but in use, or registering", n)
		}
		switch {
		case !e.ready:
			b.WriteString(", registering")
		case len(c.backends) == 0:
			b.WriteString(", no backends")
		}
		switch {
		case e.ready && e.unpinned:
			fmt.Fprintf(b, "; not registered: %v", e.failed)
		case !e.ready || c.config.Locker == nil || !e.mem.Device.IsHost() || e.failed != nil:
		case e.loose == nil:
			b.WriteString("; locked in memory")
		default:
			fmt.Fprintf(b, "; not locked in memory: %v", e.loose)
		}
		b.WriteString("\n")
		if e.ready && !e.unpinned && len(c.backends) > 0 {
			c.describeStates(b, e)
		}
	}
	for _, e := range c.leaving {
		switch {
		case e.place.start >= end || start >= e.place.end:
		case e.claims == 0:
			fmt.Fprintf(b, "  %v at %s is gone, and deregisters\n", e.mem, span(e.place.start, e.place.end))
		default:
			fmt.Fprintf(b, "  %v at %s is gone, and deregisters when %d claims are no longer in use\n", e.mem,
				span(e.place.start, e.place.end), e.claims)
		}
	}
}

// describeStates describes what each kind of backend made of an allocation.
func (c *Cache) describeStates(b *strings.Builder, e *extent) {
	for k := range kinds {
		i := c.slot[k]
		if i < 0 {
			fmt.Fprintf(b, "    %v absent: %v\n", k, c.absent(k))
			continue
		}
		switch s := &e.states[i]; {
		case errors.Is(s.why, fault.ErrNotSupported):
			fmt.Fprintf(b, "    %v cannot use it: %v\n", k, s.why)
		case s.why != nil:
			fmt.Fprintf(b, "    %v failed: %v\n", k, s.why)
		default:
			fmt.Fprintf(b, "    %v complete", k)
			if h, ok := s.handle.(fmt.Stringer); ok {
				fmt.Fprintf(b, ": %v", h)
			}
			b.WriteString("\n")
		}
	}
}
