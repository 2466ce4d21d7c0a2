package register

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/invariants"
)

// Cache is a registration cache. Make one with New. Its methods are local and safe for concurrent use.
type Cache struct {
	local, graph *index // local: claims with local references, and automatic ones; graph: claims with graph references

	config   Config
	pageSize uint64
	backends []Backend // in the order of BackendKind
	slot     [kinds]int

	_     [64]byte
	clock atomic.Uint64 // rises when a claim is made; every lookup reads it
	_     [64]byte

	counters counters

	mu      sync.Mutex // guards everything below, writes to the indexes, and the fields that Claim and extent name
	closed  bool
	extents map[uint64]*extent // by Memory.ID: alive, or kept to remember a failure
	places  *index             // the exact bytes of these extents, which do not overlap
	leaving []*extent          // retired with uses still in flight, or dead and not deregistered yet
	queue   queue              // automatic claims without references
	regions int                // claims alive or registering
	live    int                // extents with claims
	pinned  int64              // their bytes, rounded to pages

	hits, made, over, evictions int64 // hits: of claims no longer in an index; made, over: claims made and ended
}

// counters are updated without the mutex.
type counters struct {
	misses, failures, registerTime, deregisterTime, locked atomic.Int64
	kinds                                                  [kinds]struct{ complete, registered, unsupported, failures atomic.Int64 }
	_                                                      [64]byte
}

// New makes an empty cache, or returns ErrArgument with all that is wrong with config.
func New(config Config) (*Cache, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	c := &Cache{
		local: newIndex(false), graph: newIndex(false), places: newIndex(true),
		config: config, pageSize: uint64(config.PageSize), backends: slices.Clone(config.Backends),
		extents: map[uint64]*extent{},
	}
	if c.pageSize == 0 {
		c.pageSize = uint64(os.Getpagesize())
	}
	slices.SortFunc(c.backends, func(a, b Backend) int { return int(a.Kind() - b.Kind()) })
	for k := range c.slot {
		c.slot[k] = slices.IndexFunc(c.backends, func(b Backend) bool { return b.Kind() == BackendKind(k) })
	}
	return c, nil
}

// FindLocal returns a claim that contains the n bytes at addr and that the program registered or an operation made
// automatically, with its in-flight count raised: the caller calls Release. It returns nil if there is none, if only a
// graph holds one, or if n is not positive. It also returns nil if generation is neither 0 (unknown) nor that of the
// claim's memory: the caller's memory was then freed, and other memory took its place. It takes no lock, does not wait
// for writers and does not allocate.
func (c *Cache) FindLocal(addr uintptr, n int, generation uint64) *Claim {
	return c.find(c.local, addr, n, generation)
}

// FindGraph is FindLocal for claims that a graph holds.
func (c *Cache) FindGraph(addr uintptr, n int, generation uint64) *Claim {
	return c.find(c.graph, addr, n, generation)
}

// Peek is FindLocal, or else FindGraph, in any generation, of bytes that an operation under way has looked up: it counts
// neither in Stats nor as a use of the claim. The caller calls Release. It takes no lock, does not wait for writers and does
// not allocate.
func (c *Cache) Peek(addr uintptr, n int) *Claim {
	a, end := uint64(addr), uint64(addr)+uint64(n)
	if n <= 0 || a >= maxAddr || end > maxAddr {
		return nil
	}
	for _, ix := range []*index{c.local, c.graph} {
		if cl := ix.find(a, end); cl != nil {
			cl.state.Add(minus(oneHit))
			return cl
		}
	}
	return nil
}

func (c *Cache) find(ix *index, addr uintptr, n int, generation uint64) *Claim {
	a, end := uint64(addr), uint64(addr)+uint64(n)
	if n <= 0 || a >= maxAddr || end > maxAddr {
		c.counters.misses.Add(1)
		return nil
	}
	cl := ix.find(a, end)
	if cl == nil {
		c.counters.misses.Add(1)
		return nil
	}
	if generation != 0 && generation != cl.ext.mem.Generation {
		cl.state.Add(minus(oneHit))
		cl.Release()
		c.counters.misses.Add(1)
		return nil
	}
	if now := c.clock.Load(); cl.used.Load() != now {
		cl.used.Store(now)
	}
	return cl
}

// Register opens a local reference to exactly the n bytes at addr, a part of m. It registers m with every backend
// unless that was done before, and may block in the backends. Registering the same bytes again opens another reference
// to the same claim. It succeeds if a backend could register m, if all say "not supported", or if there are none;
// Claim.Handle returns the reasons of backends that could not. To stay within a limit it evicts idle automatic claims;
// with PinRequired the Locker's limit is one.
//
// Errors: ErrArgument; ErrStale if m is known in a newer generation or was freed; ErrLimit; ErrClosed; with PinRequired
// the Locker's; or the errors of all backends. Memory of an older generation, or of another ID at the same addresses,
// becomes stale: see Invalidate.
func (c *Cache) Register(m Memory, addr uintptr, n int) (*Ref, error) {
	cl, err := c.join(m, addr, n, forLocal)
	if err != nil {
		return nil, err
	}
	return &Ref{cl: cl}, nil
}

// RetainGraph is Register for a graph's reference. FindLocal does not find it.
func (c *Cache) RetainGraph(m Memory, addr uintptr, n int) (*Ref, error) {
	cl, err := c.join(m, addr, n, forGraph)
	if err != nil {
		return nil, err
	}
	return &Ref{cl: cl, graph: true}, nil
}

// RegisterAuto is Register without a reference. It returns a claim with its in-flight count raised, which the caller
// releases; FindLocal finds the claim until it is evicted or m is freed. If every backend has failed to register m
// before, RegisterAuto returns that failure without asking them again, and for a second likewise if m could not be
// locked, with PinRequired. It evicts nothing to lock m: of more automatic claims than can be locked, the first stay.
func (c *Cache) RegisterAuto(m Memory, addr uintptr, n int) (*Claim, error) {
	return c.join(m, addr, n, forUse)
}

// purpose is what join adds to the claim.
type purpose int

const (
	forLocal purpose = iota // a local reference
	forGraph                // a graph reference
	forUse                  // an in-flight use of an automatic claim
)

func (c *Cache) join(m Memory, addr uintptr, n int, why purpose) (*Claim, error) {
	if err := m.check(addr, n); err != nil {
		return nil, err
	}
	start, end := uint64(addr), uint64(addr)+uint64(n)
	cl, unpinned, err := c.attempt(m, start, end, why)
	for unpinned && why != forUse && errors.Is(err, fault.ErrLimit) && c.makeRoomToLock() {
		cl, unpinned, err = c.attempt(m, start, end, why)
	}
	if err != nil {
		return nil, fmt.Errorf("register %s of %v: %w", span(start, end), m, err)
	}
	return cl, nil
}

// attempt is one attempt to join. unpinned says that it failed because m could not be locked.
func (c *Cache) attempt(m Memory, start, end uint64, why purpose) (cl *Claim, unpinned bool, err error) {
	var dead []*extent
	c.mu.Lock()
	cl, e, err := c.begin(m, start, end, why, &dead)
	if invariants.Enabled {
		c.check()
	}
	c.mu.Unlock()
	c.reportErrors(deregister(dead)) // before registering, because evicted claims make room
	if cl != nil || err != nil {
		return cl, false, err
	}
	err = e.register()
	dead = nil
	c.mu.Lock()
	cl, err = c.finish(e, start, end, why, err, &dead)
	if invariants.Enabled {
		c.check()
	}
	c.mu.Unlock()
	c.reportErrors(deregister(dead))
	return cl, e.unpinned, err
}

// begin returns the claim if it exists. Otherwise it returns an extent, already counted for the future claim, that must
// still register.
func (c *Cache) begin(m Memory, start, end uint64, why purpose, dead *[]*extent) (*Claim, *extent, error) {
	if c.closed {
		return nil, nil, fmt.Errorf("registration cache: %w", fault.ErrClosed)
	}
	e, err := c.extentOf(m, why, dead)
	if err != nil {
		return nil, nil, err
	}
	if e != nil {
		if cl := c.exact(start, end); cl != nil {
			c.take(cl, why)
			return cl, nil, nil
		}
		e.claims++ // first, so that this extent is not evicted
		if err := c.makeRoom(0, dead); err != nil {
			c.drop(e, dead)
			return nil, nil, err
		}
	} else {
		size := c.pages(uint64(m.Base), m.end())
		if err := c.makeRoom(size, dead); err != nil {
			return nil, nil, err
		}
		e = &extent{cache: c, mem: m, pinned: size, claims: 1, loose: errNoLocker}
		e.place = Claim{start: uint64(m.Base), end: m.end(), ext: e}
		c.extents[m.ID] = e
		c.places.insert(&e.place)
		c.live++
		c.pinned += size
	}
	c.regions++
	if why != forUse {
		e.pending++
	}
	return nil, e, nil
}

// extentOf returns the extent of m, or nil. It retires extents that m proves to be stale.
func (c *Cache) extentOf(m Memory, why purpose, dead *[]*extent) (*extent, error) {
	for _, e := range c.leaving {
		if e.mem.ID == m.ID && e.mem.Generation == m.Generation && e.done != nil {
			return nil, fmt.Errorf("it was freed: %w", fault.ErrStale)
		}
	}
	if e := c.extents[m.ID]; e != nil {
		switch {
		case m.Generation < e.mem.Generation:
			return nil, fmt.Errorf("generation %d of it is in use: %w", e.mem.Generation, fault.ErrStale)
		case m.Generation == e.mem.Generation && m != e.mem:
			return nil, fmt.Errorf("it was described before as %v at %s: %w", e.mem, span(uint64(e.mem.Base), e.mem.end()),
				fault.ErrArgument)
		case m.Generation == e.mem.Generation && (!e.ready || e.failed == nil):
			return e, nil
		case m.Generation == e.mem.Generation && e.worthless(why):
			return nil, e.failed
		}
		c.retire(e, dead)
	}
	for _, p := range c.overlapping(uint64(m.Base), m.end()) {
		c.retire(p.ext, dead)
	}
	return nil, nil
}

// finish makes the claim that begin counted, unless something has come between.
func (c *Cache) finish(e *extent, start, end uint64, why purpose, err error, dead *[]*extent) (*Claim, error) {
	if why != forUse {
		e.pending--
	}
	e.ready = true
	switch {
	case err != nil:
	case c.closed:
		err = fmt.Errorf("registration cache: %w", fault.ErrClosed)
	case e.gone.Load():
		err = fmt.Errorf("it was freed, unmapped or replaced meanwhile: %w", fault.ErrStale)
	}
	if err != nil {
		c.regions--
		c.drop(e, dead)
		return nil, err
	}
	cl := c.exact(start, end)
	if cl != nil { // another goroutine was first
		c.regions--
		c.drop(e, dead)
		c.take(cl, why)
		return cl, nil
	}
	cl = &Claim{start: start, end: end, ext: e}
	cl.used.Store(c.clock.Load())
	c.take(cl, why)
	c.clock.Add(1) // lookups from now on are later
	c.made++
	return cl, nil
}

// exact returns the live claim of exactly these bytes. Claims of stale memory are in no index.
func (c *Cache) exact(start, end uint64) *Claim {
	if cl := c.local.exact(start, end); cl != nil {
		return cl
	}
	return c.graph.exact(start, end)
}

// take adds a reference or a use, as why says, to a claim that is new or in the indexes.
func (c *Cache) take(cl *Claim, why purpose) {
	switch why {
	case forLocal:
		if !cl.inLocal() {
			c.local.insert(cl)
		}
		cl.local++
		c.queue.hold(cl)
	case forGraph:
		if cl.graph == 0 {
			c.graph.insert(cl)
		}
		cl.graph++
		c.queue.hold(cl)
	case forUse:
		cl.state.Add(oneUse)
		cl.used.Store(c.clock.Load())
		if cl.inLocal() {
			return // a registration that the program made stays the program's
		}
		c.local.insert(cl)
		cl.lru = held
		if cl.graph == 0 {
			c.queue.push(cl)
		}
	}
}

func (cl *Claim) inLocal() bool { return cl.local > 0 || cl.lru != 0 }

// closeRef takes back the reference that take added.
func (c *Cache) closeRef(r *Ref) error {
	cl := r.cl
	var dead []*extent
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("registration of %v: the cache is closed: %w", cl, fault.ErrClosed)
	}
	if !cl.ext.gone.Load() {
		if r.graph {
			cl.graph--
			if cl.graph == 0 {
				c.graph.remove(cl)
			}
		} else {
			cl.local--
			if !cl.inLocal() {
				c.local.remove(cl)
			}
		}
		switch {
		case cl.local > 0 || cl.graph > 0:
		case cl.lru == held:
			c.queue.push(cl)
		default:
			c.shut(cl, &dead)
		}
	}
	if invariants.Enabled {
		cl.checkReferences()
		c.check()
	}
	c.mu.Unlock()
	return errors.Join(deregister(dead)...)
}

// shut closes a claim that is in no index to new uses, and ends it if there are none. A late reader may still hold a
// pointer to the claim; its acquire fails.
func (c *Cache) shut(cl *Claim, dead *[]*extent) {
	v := cl.state.Or(closing)
	c.hits += int64(v >> hitShift)
	if v&useMask == 0 {
		c.end(cl, dead)
	}
}

// lastUse is called when the last use of a closing claim leaves.
func (c *Cache) lastUse(cl *Claim) {
	var dead []*extent
	c.mu.Lock()
	c.end(cl, &dead)
	if invariants.Enabled {
		c.check()
	}
	c.mu.Unlock()
	c.reportErrors(deregister(dead))
}

// end ends a claim, only once: a reader that backs off may also see the last use leave.
func (c *Cache) end(cl *Claim, dead *[]*extent) {
	if cl.ended.Swap(true) {
		return
	}
	c.over++
	c.regions--
	c.drop(cl.ext, dead)
}

// drop gives up one claim's hold on e. After the last one e is dead, and the caller must call deregister without the
// mutex.
func (c *Cache) drop(e *extent, dead *[]*extent) {
	e.claims--
	if e.claims > 0 {
		return
	}
	c.live--
	c.pinned -= e.pinned
	switch {
	case e.gone.Load():
	case e.ready && e.failed != nil:
		return // stays, to remember the failure
	default:
		c.unplace(e)
		c.leaving = append(c.leaving, e)
	}
	*dead = append(*dead, e)
}

// left removes e, which has been deregistered, and returns the function that Forget promised to call.
func (c *Cache) left(e *extent) (done func(failed error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.leaving, e); i >= 0 {
		c.leaving = slices.Delete(c.leaving, i, i+1)
	}
	return e.done
}

func (c *Cache) unplace(e *extent) {
	delete(c.extents, e.mem.ID)
	c.places.remove(&e.place)
}

// deregister deregisters the extents and returns the backends' errors that no owner has been told. A caller that cannot
// return them passes them to tell.
func deregister(dead []*extent) (errs []error) {
	for _, e := range dead {
		errs = append(errs, e.deregister()...)
	}
	return errs
}

func (c *Cache) reportErrors(errs []error) {
	for _, err := range errs {
		c.report(err)
	}
}

func (c *Cache) report(err error) {
	if c.config.OnError != nil {
		c.config.OnError(err)
	}
}

// pages is the size of a range, rounded out to whole pages.
func (c *Cache) pages(start, end uint64) int64 {
	mask := c.pageSize - 1
	return int64((end+mask)&^mask - start&^mask)
}
