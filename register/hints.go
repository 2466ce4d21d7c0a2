package register

import (
	"math/bits"
	"sync/atomic"
)

// hints is a shortcut past the tree for the lookup that programs make most: at the beginning of what was registered.
// Each slot has a claim that begins in one of the pages that hash there, the last one inserted. Whoever finds a claim
// here checks it like any other, so that a lost or late entry costs a walk down the tree and nothing else. At a million
// claims a hint costs two cache misses where the tree costs six or so, a quarter of the time.
type hints struct {
	shift uint8 // 64 - log2(len(slots))
	slots []atomic.Pointer[Claim]
}

const (
	hintBits = 12 // a page: addresses in one share a slot
	minHints = 64 // a block: see slot
)

func newHints(size int) *hints {
	return &hints{shift: uint8(64 - bits.Len(uint(size-1))), slots: make([]atomic.Pointer[Claim], size)}
}

// slot spreads blocks of 64 pages by Fibonacci hashing. Neighbouring pages stay neighbours, so that allocations made in
// a row share cache lines here, and blocks of which only the first page is used are spread all the same.
func (h *hints) slot(addr uint64) *atomic.Pointer[Claim] {
	page := addr >> hintBits
	return &h.slots[page>>6*0x9e3779b97f4a7c15>>(h.shift&63)^page&63]
}

// hint makes cl the hint of its page. A table with more claims than half of its slots is made anew four times as large.
// The caller holds the cache's mutex.
func (ix *index) hint(cl *Claim) {
	if h := ix.hints.Load(); ix.n <= len(h.slots)/2 {
		h.slot(cl.start).Store(cl)
		return
	}
	ix.rehint()
}

// unhint removes cl. A table with too many slots is made anew. The caller holds the cache's mutex.
func (ix *index) unhint(cl *Claim) {
	h := ix.hints.Load()
	h.slot(cl.start).CompareAndSwap(cl, nil)
	if len(h.slots) > minHints && ix.n < len(h.slots)/16 {
		ix.rehint()
	}
}

func (ix *index) rehint() {
	size := minHints
	for size < 4*ix.n {
		size *= 2
	}
	h := newHints(size)
	ix.ascend(0, maxAddr, func(cl *Claim) bool {
		h.slot(cl.start).Store(cl)
		return true
	})
	ix.hints.Store(h)
}
