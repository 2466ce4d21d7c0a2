//go:build amd64 || arm64

// Package spin has the instructions that words shared between cores want. It is apart from package cpu because Go
// assembly and cgo do not share a package.
package spin

import (
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/race"
)

// Pause tells the core that this is a wait loop (PAUSE, YIELD; nothing on other processors), which leaves its
// resources to a sibling and makes leaving the loop cheaper. It takes some 10 to 50 ns, is local, blocks nobody, and is
// no point at which the runtime can stop the goroutine: a loop needs a real Go call every few hundred rounds.
func Pause()

// Release stores v in w with release order: whoever loads v sees what this core wrote before. Unlike atomic.Uint64.Store
// it does not wait until earlier stores have left the core (on x86 that one is a locked exchange, which costs a trip to
// the other core for each line on its way), so it orders nothing after it.
func Release(w *atomic.Uint64, v uint64) {
	if race.Enabled {
		w.Store(v)
		return
	}
	release((*uint64)(unsafe.Pointer(w)), v)
}

//go:noescape
func release(w *uint64, v uint64)

// Claim begins to fetch the cache line at p for writing, without waiting for it.
//
//go:noescape
func Claim(p unsafe.Pointer)

// Demote says that another core will read the n bytes at p next: they may move to the cache that cores share, from where
// that core gets them sooner than out of this one's own. A hint, where the processor knows it (x86: CLDEMOTE).
//
//go:noescape
func Demote(p unsafe.Pointer, n int)

// ClaimAll is Claim for n bytes.
//
//go:noescape
func ClaimAll(p unsafe.Pointer, n int)
