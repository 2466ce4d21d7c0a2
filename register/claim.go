package register

import (
	"fmt"
	"sync/atomic"

	"github.com/ubcoll/ubcoll/fault"
)

// Claim stands for registered bytes, exactly those that were asked for. The cache owns it. A caller that got it from a
// lookup, [Cache.RegisterAuto] or [Ref.Acquire] has raised its in-flight count, which keeps the backends' handles
// alive, and must call Release once. Its methods are safe for concurrent use, local, and do not block unless they say
// so.
//
// It is 64 bytes, one cache line. Lookups write only here, so goroutines with different buffers share nothing.
type Claim struct {
	start, end uint64
	state      atomic.Uint64 // closing bit, in-flight count, hit count: one atomic addition both acquires and counts
	used       atomic.Uint64 // the cache's clock at the last lookup
	ext        *extent

	// Guarded by the cache's mutex.
	local, graph int32 // open references
	lru          int32 // position in the eviction queue plus 1; 0: not automatic

	ended atomic.Bool // the last use has left
}

// The fields of Claim.state. Hits are counted modulo 2^40.
const (
	closing  = 1 // no new use may enter
	oneUse   = 1 << 1
	useMask  = 1<<24 - oneUse
	oneHit   = 1 << 24
	hitShift = 24
)

// minus is the number to add to Claim.state to subtract x.
func minus(x uint64) uint64 { return -x }

// acquire raises the in-flight count unless the claim is closing, and counts a hit.
func (cl *Claim) acquire() bool {
	if cl.state.Add(oneHit|oneUse)&closing == 0 {
		return true
	}
	cl.state.Add(minus(oneHit))
	cl.Release()
	return false
}

// Release ends one use. The last Release of a closing claim deregisters on this goroutine, and may then block; its
// errors go to Config.OnError. One Release too many is refused, and reported there too.
func (cl *Claim) Release() {
	const low = useMask | closing
	v := cl.state.Add(minus(oneUse))
	if v&low == closing {
		cl.ext.cache.lastUse(cl)
	} else if v&useMask == useMask {
		cl.state.Add(oneUse)
		cl.ext.cache.report(fmt.Errorf("%v was released more often than acquired: %w", cl, fault.ErrArgument))
	}
}

// Handle is the handle that the backend of kind k made for the claim's memory. It stays the cache's, is valid until
// Release, and covers the whole allocation: see Offset. The error says why there is none; it wraps
// fault.ErrNotSupported if there is no such backend or it cannot use this memory.
func (cl *Claim) Handle(k BackendKind) (any, error) { return cl.ext.handle(k) }

// Memory is the allocation that contains the claim.
func (cl *Claim) Memory() Memory { return cl.ext.mem }

// Generation is the generation of Memory.
func (cl *Claim) Generation() uint64 { return cl.ext.mem.Generation }

// Offset is the offset of addr in Memory. A peer that has mapped all of Memory adds it to its own base.
func (cl *Claim) Offset(addr uintptr) int { return int(addr - cl.ext.mem.Base) }

// Addr is the first byte of the claim.
func (cl *Claim) Addr() uintptr { return uintptr(cl.start) }

// Len is the claim's size in bytes.
func (cl *Claim) Len() int { return int(cl.end - cl.start) }

// Valid returns nil, or ErrStale if the memory was freed, replaced or unmapped.
func (cl *Claim) Valid() error {
	if cl.ext.gone.Load() {
		return fmt.Errorf("%v: its memory was freed, unmapped or replaced: %w", cl, fault.ErrStale)
	}
	return nil
}

// String is like "[0x1000,+64) of memory 3 generation 1 (arena, host)".
func (cl *Claim) String() string { return span(cl.start, cl.end) + " of " + cl.ext.mem.String() }

func (cl *Claim) inFlight() int { return int(cl.state.Load() & useMask / oneUse) }

// idleClose sets closing if the claim is unused, and returns its hits.
func (cl *Claim) idleClose() (hits int64, ok bool) {
	for {
		v := cl.state.Load()
		if v&(useMask|closing) != 0 {
			return 0, false
		}
		if cl.state.CompareAndSwap(v, v|closing) {
			return int64(v >> hitShift), true
		}
	}
}

// Ref is one open reference to a claim, a local one or a graph's. Its methods are local and safe for concurrent use.
type Ref struct {
	cl     *Claim
	graph  bool
	closed atomic.Bool
}

// Claim is the claim that r refers to, without a use: Acquire before touching memory. Nil after Close.
func (r *Ref) Claim() *Claim {
	if r.closed.Load() {
		return nil
	}
	return r.cl
}

// Acquire raises the claim's in-flight count; the caller calls Release on the claim. On success it neither blocks nor
// allocates. The error is ErrClosed after Close, and ErrStale if the memory was freed, replaced or unmapped.
func (r *Ref) Acquire() (*Claim, error) {
	if !r.closed.Load() && r.cl.acquire() {
		return r.cl, nil
	}
	if err := r.cl.Valid(); err != nil && !r.closed.Load() {
		return nil, err
	}
	return nil, fmt.Errorf("registration of %v: %w", r.cl, fault.ErrClosed)
}

// Close gives the reference up. It does not wait for uses in flight: after the last reference to the claim, lookups
// miss from now on, and the backends deregister when the last in-flight use leaves, or here if there is none; the error
// then joins theirs. A second Close, or one after the cache's, is ErrClosed. Closing a registration of stale memory
// succeeds.
func (r *Ref) Close() error {
	if r.closed.Swap(true) {
		return fmt.Errorf("registration of %v: %w", r.cl, fault.ErrClosed)
	}
	return r.cl.ext.cache.closeRef(r)
}
