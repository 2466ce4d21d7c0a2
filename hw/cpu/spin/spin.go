//go:build amd64 || arm64

// Package spin has instructions for words that cores share. It is separate from package cpu because Go assembly and cgo
// cannot be in one package.
package spin

import (
	"sync/atomic"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/race"
)

// Pause tells the core that this is a wait loop (PAUSE, YIELD; nothing on other processors). That leaves the core's
// resources to a sibling thread and makes leaving the loop cheaper. It is local, does not block, and takes some 10 to
// 50 ns. The runtime cannot stop the goroutine at a Pause: the loop needs a real Go call every few hundred rounds.
func Pause()

// Release stores v in w with release order: a core that loads v sees everything that this core wrote before. Unlike
// atomic.Uint64.Store it does not wait until earlier stores have left the core, so it does not order later accesses
// after it. (On x86, that Store is a locked exchange, which costs a trip to the other core for each line still on its
// way.)
func Release(w *atomic.Uint64, v uint64) {
	if race.Enabled {
		w.Store(v)
		return
	}
	release((*uint64)(unsafe.Pointer(w)), v)
}

//go:noescape
func release(w *uint64, v uint64)

// Claim starts to fetch the cache line at p for writing, without waiting for it.
//
//go:noescape
func Claim(p unsafe.Pointer)

// Demote says that another core will read the n bytes at p next. The processor may move them to the cache that the
// cores share, where the other core gets them sooner than from this core's own cache. It is a hint, and does nothing if
// the processor does not know it (x86: CLDEMOTE).
//
//go:noescape
func Demote(p unsafe.Pointer, n int)

// ClaimAll is Claim for n bytes.
//
//go:noescape
func ClaimAll(p unsafe.Pointer, n int)
