package coll

import "slices"

// span is n elements from off on.
type span struct{ off, n int }

// spans are elements, in order; no two of them touch.
type spans []span

// add adds elements that are not there yet.
func (a *spans) add(off, n int) {
	all := *a
	i, _ := slices.BinarySearchFunc(all, off, func(s span, off int) int { return s.off - off })
	before := i > 0 && all[i-1].off+all[i-1].n == off
	behind := i < len(all) && off+n == all[i].off
	switch {
	case before && behind:
		all[i-1].n += n + all[i].n
		all = slices.Delete(all, i, i+1)
	case before:
		all[i-1].n += n
	case behind:
		all[i] = span{off, n + all[i].n}
	default:
		all = slices.Insert(all, i, span{off, n})
	}
	*a = all
}

// has reports whether all of n elements from off on are there.
func (a spans) has(off, n int) bool {
	return n == 0 || slices.ContainsFunc(a, func(s span) bool { return s.off <= off && off+n <= s.off+s.n })
}
