package mem

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll/internal/invariants"
)

// This file has the checks of builds with -tags invariants.

// freedByte fills the memory of a freed allocation, so that who still reads it sees neither its data nor zeros. On the Go
// heap, which is for the race detector, one word in freedWords is filled, since the detector makes atomic stores slow.
const (
	freedByte  = 0xdb
	freedWord  = freedByte * 0x0101010101010101
	freedWords = 64
)

// checkedAlways is up to how many slots every change is checked; with more, one change in so many is.
const checkedAlways = 512

// check checks that the allocations, which Lookup searches, and the directory, which peers read, are the same, and that
// what is free in an arena is not in use. The caller holds h.mu.
func (h *Heap) check() {
	if h.closed || h.nextSlot > checkedAlways && h.generation%checkedAlways != 0 {
		return
	}
	used := make([]bool, h.nextSlot)
	for i, a := range h.live {
		s := a.At.Slot
		switch {
		case s >= h.nextSlot || used[s]:
			invariants.Violated("memory at %p has slot %d, which is not its own", a.Ptr, s)
		case h.dir.slots[s].Load() != a.At.Generation || h.goHeap && a.Dev.IsHost() && h.slots[s].Load() != a:
			invariants.Violated("memory at %p of generation %d is not what the directory has in slot %d", a.Ptr, a.At.Generation, s)
		case a.freed.Load():
			invariants.Violated("memory at %p has been freed, and Lookup finds it", a.Ptr)
		}
		used[s] = true
		if i > 0 && h.live[i-1].Base() > a.Base() {
			invariants.Violated("memory at %p is listed before that at %p", h.live[i-1].Ptr, a.Ptr)
		}
		// An owner may free adopted memory before Free, and its address may have come to the heap since then.
		if i > 0 && h.live[i-1].made() && a.made() && h.live[i-1].Base()+uintptr(h.live[i-1].pages) > a.Base() {
			invariants.Violated("memory at %p, %d bytes, overlaps that at %p", h.live[i-1].Ptr, h.live[i-1].pages, a.Ptr)
		}
	}
	for _, s := range h.freeSlots {
		if used[s] || h.dir.slots[s].Load() != 0 {
			invariants.Violated("slot %d is free twice, or in use", s)
		}
		used[s] = true
	}
	for _, ar := range h.arenas {
		h.checkArena(ar)
	}
}

// made reports whether the heap made the memory.
func (a *Allocation) made() bool { return a.Origin == Arena || a.Origin == Device }

// checkArena checks that each byte of an arena is in one place: free, held, or in an allocation. Memory whose address
// could not be given up is in none.
func (h *Heap) checkArena(ar *arena) {
	for i := 1; i < len(ar.free); i++ {
		if before := ar.free[i-1]; ar.free[i].off <= before.off+before.n {
			invariants.Violated("free memory of arena %d at %d is not behind that before, to %d", ar.number, ar.free[i].off,
				before.off+before.n)
		}
	}
	all, live := slices.Clone(ar.free), 0
	for _, a := range h.live {
		if a.arena == ar {
			all = append(all, span{int(a.At.Offset), a.pages})
			live++
		}
	}
	for _, s := range h.held {
		if s.arena == ar {
			all = append(all, s.span)
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.off - b.off })
	end := 0
	for _, s := range all {
		if s.n <= 0 || s.off < end {
			invariants.Violated("[%d,+%d) of arena %d is in two places", s.off, s.n, ar.number)
		}
		end = s.off + s.n
	}
	if end > ar.file.Size() {
		invariants.Violated("arena %d of %d bytes has memory to %d", ar.number, ar.file.Size(), end)
	}
	if ar.live < live {
		invariants.Violated("arena %d has %d allocations, and counts %d", ar.number, live, ar.live)
	}
}

// checkReleased checks the number of uses after a Release.
func (a *Allocation) checkReleased(uses int64) {
	if uses < 0 || uses&(freeing-1) > freeing/2 {
		invariants.Violated("memory at %p was released more often than held", a.Ptr)
	}
}

// checkLocks checks the number of Locks after an Unlock.
func (a *Allocation) checkLocks() {
	if a.locks < 0 {
		invariants.Violated("memory at %p was unlocked more often than locked", a.Ptr)
	}
}

// idleLimit is how long checkIdle looks: a Hold that fails counts for a moment, too.
var idleLimit = 10 * time.Second

// checkIdle checks that nothing holds a, which is about to be freed.
func (a *Allocation) checkIdle() {
	for begin := time.Now(); a.Holders() > 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > idleLimit {
			invariants.Violated("memory at %p is freed, and %d operations hold it", a.Ptr, a.Holders())
		}
	}
}

// poison gives the memory of a, which is being freed, a pattern, unless a peer may still use it. The address stays, since
// errors name it; nothing is mapped there, or it is the Go heap's. There the race detector sees who still uses the memory,
// but for atomic words: a peer may read one that it has found alive just before. The caller holds h.mu.
func (h *Heap) poison(a *Allocation) {
	if a.kept.Load() || h.quarantines > 0 {
		return
	}
	if h.goHeap {
		words := unsafe.Slice((*atomic.Uint64)(a.Ptr), a.pages/8)
		for i := 0; i < len(words); i += freedWords {
			words[i].Store(freedWord)
		}
		return
	}
	b := unsafe.Slice((*byte)(a.Ptr), a.pages)
	for n := 0; n < len(b); n += copy(b[n:], freed[:]) {
	}
}

// freed is a piece of the pattern, as large as what zero clears at a time.
var freed = [64 << 10]byte(bytes.Repeat([]byte{freedByte}, 64<<10))
