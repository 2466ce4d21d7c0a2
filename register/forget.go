package register

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// Forget is called by the owner of m before it frees m. While local or graph references are open it returns ErrInUse
// with their number and changes nothing. Otherwise lookups miss from now on, and automatic claims end. When the last
// in-flight use has left and the backends have deregistered, done is called once with their errors: before Forget
// returns if nothing is in flight, else on the goroutine that ends the last use. done is called without locks; it may
// free the memory. If the cache knows nothing of m, done is called at once. If m was forgotten before or is known in a
// newer generation, Forget returns ErrStale and does not call done.
//
// Forget works after Close too, because memory outlives the cache while operations still use it.
func (c *Cache) Forget(m Memory, done func(failed error)) error {
	end, err := c.Leave(m, func() error { return nil }, done)
	if err == nil {
		end()
	}
	return err
}

// Leave is Forget for callers that do not want to wait for the backends yet: it decides, and returns end, which the
// caller must call once to do the rest. It calls last, with a lock held, once nothing else can keep m from being freed;
// an error of last does, and Leave returns it.
func (c *Cache) Leave(m Memory, last func() error, done func(failed error)) (end func(), err error) {
	var dead []*extent
	c.mu.Lock()
	left, err := c.forget(m, last, done, &dead)
	if invariants.Enabled {
		c.check()
	}
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("memory at %#x: %w", m.Base, err)
	}
	return func() {
		c.reportErrors(deregister(dead))
		if left == 0 {
			done(nil)
		}
	}, nil
}

// forget returns how many extents of m must end before done is called: one at most, except after Invalidate.
func (c *Cache) forget(m Memory, last func() error, done func(error), dead *[]*extent) (int, error) {
	var waiting []*extent
	for _, e := range c.leaving {
		if e.mem.ID != m.ID || e.mem.Generation != m.Generation {
			continue
		}
		if e.done != nil {
			return 0, fmt.Errorf("it was freed before: %w", fault.ErrStale)
		}
		waiting = append(waiting, e)
	}
	e := c.extents[m.ID]
	switch {
	case e == nil:
	case e.mem.Generation > m.Generation:
		return 0, fmt.Errorf("generation %d of it is in use: %w", e.mem.Generation, fault.ErrStale)
	case e.mem.Generation == m.Generation:
		locals, graphs := c.references(e)
		if locals+graphs > 0 {
			return 0, fmt.Errorf("%d registrations and windows, and %d graphs are open, close them first: %w", locals,
				graphs, fault.ErrInUse)
		}
		if e.claims > 0 {
			waiting = append(waiting, e)
		}
	}
	if err := last(); err != nil {
		return 0, err
	}
	left := len(waiting)
	var mu sync.Mutex
	var failed []error
	rest := left
	for _, w := range waiting {
		w.done = func(err error) {
			mu.Lock()
			if err != nil {
				failed = append(failed, err)
			}
			rest--
			last := rest == 0
			mu.Unlock()
			if last {
				done(errors.Join(failed...))
			}
		}
	}
	if e != nil {
		c.retire(e, dead)
	}
	return left, nil
}

// claimsOf returns every claim in e, a live extent, that is in an index.
func (c *Cache) claimsOf(e *extent) []*Claim {
	claims := c.local.claimsIn(e.place.start, e.place.end)
	for _, cl := range c.graph.claimsIn(e.place.start, e.place.end) {
		if !cl.inLocal() {
			claims = append(claims, cl)
		}
	}
	return claims
}

// references counts the open references to e; a registration under way counts as one.
func (c *Cache) references(e *extent) (locals, graphs int) {
	locals = e.pending
	for _, cl := range c.claimsOf(e) {
		locals += int(cl.local)
		graphs += int(cl.graph)
	}
	return locals, graphs
}

// Invalidate is for memory that vanished without Forget, such as adopted memory that its owner unmapped. Every
// allocation that overlaps the n bytes at addr ends as a whole, since a backend cannot separate a part of a
// registration. Its claims become stale, lookups miss from now on, and the backends deregister when the last in-flight
// use leaves, or here if there is none. Open references must still be closed. The error joins the backends' errors of
// this call.
func (c *Cache) Invalidate(addr uintptr, n int) error {
	if n <= 0 || uint64(addr) >= maxAddr || uint64(n) >= maxAddr {
		return fmt.Errorf("invalidate %d bytes at %#x: %w", n, addr, fault.ErrArgument)
	}
	var dead []*extent
	c.mu.Lock()
	for _, p := range c.overlapping(uint64(addr), uint64(addr)+uint64(n)) {
		c.retire(p.ext, &dead)
	}
	if invariants.Enabled {
		c.check()
	}
	c.mu.Unlock()
	return errors.Join(deregister(dead)...)
}

// overlapping returns the places of the extents that overlap [start, end).
func (c *Cache) overlapping(start, end uint64) []*Claim {
	var all []*Claim
	if p := c.places.nearest(start); p != nil && p.start < start && p.end > start {
		all = append(all, p)
	}
	return append(all, c.places.claimsIn(start, end)...)
}

// retire makes an extent and its claims stale. Claims without a use in flight end at once.
func (c *Cache) retire(e *extent, dead *[]*extent) {
	c.unplace(e)
	e.gone.Store(true)
	if e.claims == 0 {
		return // it only remembered a failure
	}
	c.leaving = append(c.leaving, e)
	for _, cl := range c.claimsOf(e) {
		if cl.inLocal() {
			c.local.remove(cl)
			c.queue.remove(cl)
		}
		if cl.graph > 0 {
			c.graph.remove(cl)
		}
		c.shut(cl, dead)
	}
}

// End is Close for an owner that ends together with the cache: open registrations are no error, only the backends'
// errors count.
func (c *Cache) End() error {
	joined, ok := c.Close().(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		if !errors.Is(err, fault.ErrInUse) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close ends the cache. Everything left is deregistered when its last in-flight use leaves, or here if there is none.
// The error names the references that were still open, with ErrInUse, and joins the backends' errors of this call.
// Later calls are ErrClosed, and lookups miss; Claim.Release and Forget still work.
func (c *Cache) Close() error {
	var dead []*extent
	var errs []error
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("registration cache: %w", fault.ErrClosed)
	}
	c.closed = true
	if err := c.leftovers(); err != nil {
		errs = append(errs, err)
	}
	for _, p := range c.overlapping(0, maxAddr) {
		c.retire(p.ext, &dead)
	}
	if invariants.Enabled {
		c.check()
		c.checkClosed()
	}
	c.mu.Unlock()
	return errors.Join(append(errs, deregister(dead)...)...)
}

// leftovers names the claims with open references.
func (c *Cache) leftovers() error {
	const most = 8
	text, n := "", 0
	note := func(cl *Claim) bool {
		if n++; n <= most {
			text += fmt.Sprintf("; %v: %d local, %d graph", cl, cl.local, cl.graph)
		}
		return true
	}
	c.local.ascend(0, maxAddr, func(cl *Claim) bool { return cl.local+cl.graph == 0 || note(cl) })
	c.graph.ascend(0, maxAddr, func(cl *Claim) bool { return cl.inLocal() || note(cl) })
	if n == 0 {
		return nil
	}
	if n > most {
		text += fmt.Sprintf("; and %d more", n-most)
	}
	return fmt.Errorf("registration cache closed with open references to %d claims%s: %w", n, text, fault.ErrInUse)
}
