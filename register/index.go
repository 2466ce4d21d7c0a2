package register

import (
	"sync/atomic"
	"unsafe"
)

// The index is a B+-tree of claims ordered by start. Readers take no lock. Leaves never change: the one writer, which
// holds the cache's mutex, copies a leaf and stores the copy into the parent's slot. It copies inner nodes only to add
// or remove a child. Claims may overlap, so a reader may have to look left of the nearest start. reach, the largest end
// of all entries up to one, tells where that is worthwhile.
//
// Only empty nodes are unlinked, and none are merged. So every leaf holds a claim, and the live claims bound the size.
const (
	leafFan  = 16 // two cache lines of starts and two of claims; an insert copies no more
	innerFan = 64 // eight groups of eight, each one cache line
	unused   = 1<<63 - 1

	// maxAddr bounds the addresses: search subtracts them, and the sign bit must show the result.
	maxAddr = 1 << 62
)

// leaf is immutable once it is reachable, except in a private index. It is 384 bytes, a size class that keeps each
// array on its own cache lines.
type leaf struct {
	starts [leafFan]uint64 // ascending, then unused
	claims [leafFan]*Claim
	reach  [leafFan]uint64 // reach[i] is the largest end of claims[0..i]
}

// inner has n children. kids and reach are changed in place (reach first when it rises), the other fields never.
type inner struct {
	n     int
	_     [6]uint64        // padding: after Go's 8-byte header of a large object, guide starts a cache line
	guide [8]uint64        // guide[g] is keys[8*g], the group's first key
	keys  [innerFan]uint64 // keys[i] is the lower bound of child i, keys[0] is never read; then unused
	kids  [innerFan]unsafe.Pointer
	reach [innerFan]uint64 // the largest end below child i; may be too large while a writer runs
}

// root is one version of the tree: top is a *leaf if height is 0, else an *inner.
type root struct {
	top    unsafe.Pointer
	height int
}

type index struct {
	private bool // all readers hold the mutex: leaves are changed in place, and there are no hints
	hints   atomic.Pointer[hints]
	root    atomic.Pointer[root]
	version atomic.Uint64 // rises after every change: a miss that overlapped a change searches again
	n       int           // number of claims; guarded by the cache's mutex
}

func newIndex(private bool) *index {
	ix := &index{private: private}
	ix.hints.Store(newHints(minHints))
	ix.root.Store(&root{top: unsafe.Pointer(newLeaf())})
	return ix
}

func newLeaf() *leaf {
	l := &leaf{}
	for i := range l.starts {
		l.starts[i] = unused
	}
	return l
}

func newInner() *inner {
	nd := &inner{}
	for i := range nd.keys {
		nd.keys[i] = unused
	}
	for i := range nd.guide {
		nd.guide[i] = unused
	}
	return nd
}

// le is 1 if k <= a and 0 otherwise, where a1 is a+1. It has no branch, because random addresses would mispredict every
// one.
func le(k, a1 uint64) uint64 { return (k - a1) >> 63 }

// search returns the last child whose key is at most addr, or child 0.
func (nd *inner) search(addr uint64) int {
	a := addr + 1
	g := &nd.guide
	i := le(g[1], a) + le(g[2], a) + le(g[3], a) + le(g[4], a) + le(g[5], a) + le(g[6], a) + le(g[7], a)
	k := (*[8]uint64)(nd.keys[i&7*8:])
	return int(i&7*8 + le(k[1], a) + le(k[2], a) + le(k[3], a) + le(k[4], a) + le(k[5], a) + le(k[6], a) + le(k[7], a))
}

// search returns the last entry whose start is at most addr, or entry 0.
func (l *leaf) search(addr uint64) int {
	a := addr + 1
	k := &l.starts
	return int(le(k[1], a) + le(k[2], a) + le(k[3], a) + le(k[4], a) + le(k[5], a) + le(k[6], a) + le(k[7], a) +
		le(k[8], a) + le(k[9], a) + le(k[10], a) + le(k[11], a) + le(k[12], a) + le(k[13], a) + le(k[14], a) + le(k[15], a))
}

// nearest returns the claim with the greatest start at or before addr, which is nearly always the one that contains
// addr, if any does. It may return nil, or a claim that starts after addr if every claim does.
func (ix *index) nearest(addr uint64) *Claim {
	r := ix.root.Load()
	p := r.top
	for h := r.height; h > 0; h-- {
		nd := (*inner)(p)
		p = atomic.LoadPointer(&nd.kids[nd.search(addr)&(innerFan-1)])
	}
	l := (*leaf)(p)
	return l.claims[l.search(addr)&(leafFan-1)]
}

// find returns some claim that contains [addr, end), with its in-flight count raised, or nil.
func (ix *index) find(addr, end uint64) *Claim {
	cl := ix.hints.Load().slot(addr).Load()
	if cl != nil && cl.start <= addr && end <= cl.end && cl.acquire() {
		return cl
	}
	cl = ix.nearest(addr)
	if cl != nil && cl.start <= addr && end <= cl.end && cl.acquire() {
		return cl
	}
	return ix.stab(&query{addr: addr, end: end})
}

// query is one search for a claim that contains [addr, end). visits counts nodes, for tests of the cost.
type query struct {
	addr, end uint64
	visits    int
}

// stab returns some claim that contains q's range, with its in-flight count raised, or nil.
func (ix *index) stab(q *query) *Claim {
	for {
		v := ix.version.Load()
		r := ix.root.Load()
		cl := q.stab(r.top, r.height)
		if cl != nil || v == ix.version.Load() {
			return cl
		}
	}
}

func (q *query) stab(p unsafe.Pointer, height int) *Claim {
	q.visits++
	if height == 0 {
		return q.stabLeaf((*leaf)(p))
	}
	nd := (*inner)(p)
	// All entries left of the first child that is searched start at or before addr. So a sufficient reach there means a
	// claim that contains the range, unless that claim is closing: each closing claim costs at most two paths down.
	for i := nd.search(q.addr); i >= 0; i-- {
		if atomic.LoadUint64(&nd.reach[i]) < q.end {
			continue
		}
		if cl := q.stab(atomic.LoadPointer(&nd.kids[i]), height-1); cl != nil {
			return cl
		}
	}
	return nil
}

func (q *query) stabLeaf(l *leaf) *Claim {
	i := l.search(q.addr)
	if l.starts[i] > q.addr {
		return nil
	}
	for ; i >= 0 && l.reach[i] >= q.end; i-- {
		if cl := l.claims[i]; cl.end >= q.end && cl.acquire() {
			return cl
		}
	}
	return nil
}

// insert adds cl. The caller holds the cache's mutex.
func (ix *index) insert(cl *Claim) {
	r := ix.root.Load()
	left, right, key := ix.insertBelow(r.top, r.height, cl)
	switch {
	case right != nil:
		nd := newInner()
		nd.add(0, 0, left, reachOf(left, r.height))
		nd.add(1, key, right, reachOf(right, r.height))
		ix.root.Store(&root{top: unsafe.Pointer(nd), height: r.height + 1})
	case left != r.top:
		ix.root.Store(&root{top: left, height: r.height})
	}
	ix.n++
	ix.version.Add(1)
	if !ix.private {
		ix.hint(cl)
	}
}

// insertBelow returns the replacement of p: one node, or two, where the right one starts at key.
func (ix *index) insertBelow(p unsafe.Pointer, height int, cl *Claim) (left, right unsafe.Pointer, key uint64) {
	if height == 0 {
		return ix.insertLeaf((*leaf)(p), cl)
	}
	nd := (*inner)(p)
	i := nd.search(cl.start)
	if nd.reach[i] < cl.end {
		atomic.StoreUint64(&nd.reach[i], cl.end)
	}
	l, r, k := ix.insertBelow(nd.kids[i], height-1, cl)
	if r == nil {
		if l != nd.kids[i] {
			atomic.StorePointer(&nd.kids[i], l)
		}
		return p, nil, 0
	}
	// A child was split: rebuild this node with one child more, as two halves if it is full. A split at the very end
	// leaves the left half full, so that ascending inserts, as arenas make them, fill the nodes.
	a, b := newInner(), (*inner)(nil)
	cut := nd.n + 1
	if nd.n == innerFan {
		cut = innerFan / 2
		if i == nd.n-1 {
			cut = nd.n
		}
		b = newInner()
	}
	for j, at := 0, 0; j < nd.n; j++ {
		put := func(key uint64, kid unsafe.Pointer, reach uint64) {
			if at < cut {
				a.add(at, key, kid, reach)
			} else {
				b.add(at-cut, key, kid, reach)
			}
			at++
		}
		if j != i {
			put(nd.keys[j], nd.kids[j], nd.reach[j])
			continue
		}
		put(nd.keys[j], l, reachOf(l, height-1))
		put(k, r, reachOf(r, height-1))
	}
	if b == nil {
		return unsafe.Pointer(a), nil, 0
	}
	return unsafe.Pointer(a), unsafe.Pointer(b), b.keys[0]
}

// add appends child at to a node under construction.
func (nd *inner) add(at int, key uint64, kid unsafe.Pointer, reach uint64) {
	nd.keys[at] = key
	if at%8 == 0 {
		nd.guide[at/8] = key
	}
	nd.kids[at] = kid
	nd.reach[at] = reach
	nd.n = at + 1
}

func (ix *index) insertLeaf(l *leaf, cl *Claim) (left, right unsafe.Pointer, key uint64) {
	// Among claims with the same start the longest comes last, where nearest finds it.
	n := l.len()
	at := n
	for at > 0 && (l.starts[at-1] > cl.start || l.starts[at-1] == cl.start && l.claims[at-1].end > cl.end) {
		at--
	}
	if n < leafFan && ix.private {
		copy(l.claims[at+1:], l.claims[at:n])
		l.claims[at] = cl
		l.fill(l.claims[:n+1], nil, nil)
		return unsafe.Pointer(l), nil, 0
	}
	a := newLeaf()
	if n < leafFan {
		a.fill(l.claims[:at], cl, l.claims[at:n])
		return unsafe.Pointer(a), nil, 0
	}
	b := newLeaf()
	switch mid := leafFan / 2; {
	case at == n:
		a = l
		b.fill(nil, cl, nil)
	case at <= mid:
		a.fill(l.claims[:at], cl, l.claims[at:mid])
		b.fill(l.claims[mid:], nil, nil)
	default:
		a.fill(l.claims[:mid], nil, nil)
		b.fill(l.claims[mid:at], cl, l.claims[at:])
	}
	return unsafe.Pointer(a), unsafe.Pointer(b), b.starts[0]
}

// fill sets l's entries to before, cl unless it is nil, and after.
func (l *leaf) fill(before []*Claim, cl *Claim, after []*Claim) {
	n := copy(l.claims[:], before)
	if cl != nil {
		l.claims[n] = cl
		n++
	}
	n += copy(l.claims[n:], after)
	var reach uint64
	for i, c := range l.claims[:n] {
		reach = max(reach, c.end)
		l.starts[i], l.reach[i] = c.start, reach
	}
}

func (l *leaf) len() int {
	n := 0
	for n < leafFan && l.claims[n] != nil {
		n++
	}
	return n
}

func reachOf(p unsafe.Pointer, height int) uint64 {
	if height == 0 {
		l := (*leaf)(p)
		if n := l.len(); n > 0 {
			return l.reach[n-1]
		}
		return 0
	}
	nd := (*inner)(p)
	var reach uint64
	for i := range nd.n {
		reach = max(reach, nd.reach[i])
	}
	return reach
}

// remove takes cl out and reports whether it was in the index. The caller holds the cache's mutex.
func (ix *index) remove(cl *Claim) bool {
	r := ix.root.Load()
	p, ok := removeBelow(r.top, r.height, cl)
	if !ok {
		return false
	}
	height := r.height
	for height > 0 && p != nil && (*inner)(p).n == 1 {
		p = (*inner)(p).kids[0]
		height--
	}
	if p == nil {
		p, height = unsafe.Pointer(newLeaf()), 0
	}
	if p != r.top {
		ix.root.Store(&root{top: p, height: height})
	}
	ix.n--
	ix.version.Add(1)
	if !ix.private {
		ix.unhint(cl)
	}
	return true
}

// removeBelow returns the replacement of p (nil if it is empty) and whether cl was below it.
func removeBelow(p unsafe.Pointer, height int, cl *Claim) (unsafe.Pointer, bool) {
	if height == 0 {
		l := (*leaf)(p)
		n := l.len()
		for i, c := range l.claims[:n] {
			if c != cl {
				continue
			}
			if n == 1 {
				return nil, true
			}
			a := newLeaf()
			a.fill(l.claims[:i], nil, l.claims[i+1:n])
			return unsafe.Pointer(a), true
		}
		return p, false
	}
	nd := (*inner)(p)
	for i := nd.search(cl.start); i >= 0; i-- { // equal starts may reach into children further left
		q, ok := removeBelow(nd.kids[i], height-1, cl)
		switch {
		case !ok && i > 0 && nd.keys[i] >= cl.start:
			continue
		case !ok:
			return p, false
		case q != nil:
			if q != nd.kids[i] {
				atomic.StorePointer(&nd.kids[i], q)
			}
			atomic.StoreUint64(&nd.reach[i], reachOf(q, height-1))
			return p, true
		case nd.n == 1:
			return nil, true
		}
		a := newInner()
		for j := range nd.n {
			if j != i {
				a.add(a.n, nd.keys[j], nd.kids[j], nd.reach[j])
			}
		}
		return unsafe.Pointer(a), true
	}
	return p, false
}

// ascend calls f for the claims with lo <= start < hi, in order, until f returns false. The caller holds the cache's
// mutex, and f must not change the index.
func (ix *index) ascend(lo, hi uint64, f func(*Claim) bool) {
	r := ix.root.Load()
	ascendBelow(r.top, r.height, lo, hi, f)
}

func ascendBelow(p unsafe.Pointer, height int, lo, hi uint64, f func(*Claim) bool) bool {
	if height == 0 {
		l := (*leaf)(p)
		for _, cl := range l.claims[:l.len()] {
			if cl.start >= hi || cl.start >= lo && !f(cl) {
				return false
			}
		}
		return true
	}
	nd := (*inner)(p)
	first := nd.search(lo)
	for first > 0 && nd.keys[first] == lo { // equal starts may begin in an earlier child
		first--
	}
	for i := first; i < nd.n; i++ {
		if !ascendBelow(nd.kids[i], height-1, lo, hi, f) {
			return false
		}
	}
	return true
}

// exact returns the claim of exactly [start, end), or nil. The caller holds the cache's mutex.
func (ix *index) exact(start, end uint64) (found *Claim) {
	ix.ascend(start, start+1, func(cl *Claim) bool {
		if cl.end == end {
			found = cl
		}
		return found == nil
	})
	return found
}

// claimsIn returns every claim that starts in [lo, hi). The caller holds the cache's mutex.
func (ix *index) claimsIn(lo, hi uint64) (all []*Claim) {
	ix.ascend(lo, hi, func(cl *Claim) bool {
		all = append(all, cl)
		return true
	})
	return all
}
