package register

import (
	"math/bits"
	"sync/atomic"
)

// hints is a shortcut past the tree for the most frequent lookup: at the start of what was registered. Each slot has
// the last inserted claim that starts in one of the pages that hash there. find checks such a claim like any other, so
// a lost or late entry costs only a walk down the tree. At a million claims a hint costs two cache misses and the tree
// about six, four times as long.
type hints struct {
	shift uint8 // 64 - log2(len(slots))
	slots []atomic.Pointer[Claim]
}

const (
	hintBits = 12 // a page: its addresses share a slot
	minHints = 64 // a block: see slot
)

func newHints(size int) *hints {
	return &hints{shift: uint8(64 - bits.Len(uint(size-1))), slots: make([]atomic.Pointer[Claim], size)}
}

// slot spreads blocks of 64 pages by Fibonacci hashing. Neighbouring pages stay neighbours, so that allocations made in
// a row share cache lines here. Blocks that only use their first page are spread as well.
func (h *hints) slot(addr uint64) *atomic.Pointer[Claim] {
	page := addr >> hintBits
	return &h.slots[page>>6*0x9e3779b97f4a7c15>>(h.shift&63)^page&63]
}

// hint makes cl the hint of its page. When there are more claims than half the slots, it makes a new table four times
// as large. The caller holds the cache's mutex.
func (ix *index) hint(cl *Claim) {
	if h := ix.hints.Load(); ix.n <= len(h.slots)/2 {
		h.slot(cl.start).Store(cl)
		return
	}
	ix.rehint()
}

// unhint removes cl. When the table has too many slots, it makes a smaller one. The caller holds the cache's mutex.
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
