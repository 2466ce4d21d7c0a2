package membership

import (
	"math/bits"
	"slices"
)

// Set is a set of ranks of a communicator, a bit each. Sets of the same communicator have the same length.
type Set []uint64

// NewSet is an empty set for a communicator of n ranks.
func NewSet(n int) Set { return make(Set, Words(n)) }

// Words is the length of the sets of a communicator of n ranks.
func Words(n int) int { return (n + 63) / 64 }

// Has reports whether a rank is in the set.
func (s Set) Has(rank int) bool { return s[rank/64]>>(rank%64)&1 != 0 }

// Add puts a rank into the set.
func (s Set) Add(rank int) { s[rank/64] |= 1 << (rank % 64) }

// Count is how many ranks are in the set.
func (s Set) Count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Holds reports whether all of other is in the set.
func (s Set) Holds(other Set) bool {
	for i, w := range other {
		if w&^s[i] != 0 {
			return false
		}
	}
	return true
}

// join puts all of other into the set.
func (s Set) join(other Set) {
	for i, w := range other {
		s[i] |= w
	}
}

// With is a set of all of both.
func (s Set) With(other Set) Set {
	all := slices.Clone(s)
	all.join(other)
	return all
}

// Remove takes a rank out of the set.
func (s Set) Remove(rank int) { s[rank/64] &^= 1 << (rank % 64) }

// Equal reports whether both sets are the same.
func (s Set) Equal(other Set) bool { return slices.Equal(s, other) }
