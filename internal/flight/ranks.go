package flight

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Ranks is a set of ranks, as runs of consecutive ones in order: dumps may name a size that nothing should be allocated by.
type Ranks []run

type run struct{ first, last int }

// ranksOf is the set of some ranks.
func ranksOf(list ...int) (all Ranks) {
	list = slices.Clone(list)
	slices.Sort(list)
	for _, r := range list {
		switch n := len(all); {
		case n > 0 && all[n-1].last >= r:
		case n > 0 && all[n-1].last == r-1:
			all[n-1].last = r
		default:
			all = append(all, run{r, r})
		}
	}
	return all
}

// below is the set of the ranks below n.
func below(n int) Ranks {
	if n < 1 {
		return nil
	}
	return Ranks{{0, n - 1}}
}

// without is the set of those of s that are not in o.
func (s Ranks) without(o Ranks) (left Ranks) {
	for _, r := range s {
		for _, x := range o {
			if x.last < r.first {
				continue
			}
			if x.first > r.last {
				break
			}
			if x.first > r.first {
				left = append(left, run{r.first, x.first - 1})
			}
			r.first = x.last + 1
		}
		if r.first <= r.last {
			left = append(left, r)
		}
	}
	return left
}

// Has reports whether rank is in s.
func (s Ranks) Has(rank int) bool {
	_, ok := slices.BinarySearchFunc(s, rank, func(r run, rank int) int {
		switch {
		case r.last < rank:
			return -1
		case r.first > rank:
			return 1
		}
		return 0
	})
	return ok
}

// Len is how many ranks there are.
func (s Ranks) Len() (n int) {
	for _, r := range s {
		n += r.last - r.first + 1
	}
	return n
}

// numbers is "3" or "0-2, 5".
func (s Ranks) numbers() string {
	const most = 8
	var parts []string
	left := s.Len()
	for _, r := range s {
		for r.first <= r.last {
			if len(parts) == most {
				return fmt.Sprintf("%s and %d more", strings.Join(parts, ", "), left)
			}
			if n := r.last - r.first + 1; n > 2 {
				parts = append(parts, fmt.Sprintf("%d-%d", r.first, r.last))
				r.first, left = r.last+1, left-n
				continue
			}
			parts = append(parts, fmt.Sprint(r.first))
			r.first, left = r.first+1, left-1
		}
	}
	return strings.Join(parts, ", ")
}

// String is "rank 3" or "ranks 0-2, 5".
func (s Ranks) String() string {
	if s.Len() == 1 {
		return "rank " + s.numbers()
	}
	return "ranks " + s.numbers()
}

// verb is one for a single rank, and several for more.
func (s Ranks) verb(one, several string) string {
	if s.Len() == 1 {
		return one
	}
	return several
}

// MarshalJSON writes the ranks as a list of numbers.
func (s Ranks) MarshalJSON() ([]byte, error) {
	list := make([]int, 0, s.Len())
	for _, r := range s {
		for k := r.first; k <= r.last; k++ {
			list = append(list, k)
		}
	}
	return json.Marshal(list)
}
