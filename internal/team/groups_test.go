package team

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// caches gives the cache of each rank, when each cache has so many ranks in a row.
func caches(ranks ...int) (of []int) {
	for c, n := range ranks {
		of = append(of, slices.Repeat([]int{c}, n)...)
	}
	return of
}

func alternating(n, caches int) (of []int) {
	for r := range n {
		of = append(of, r%caches)
	}
	return of
}

func sizes(groups [][]int) (s []int) {
	for _, g := range groups {
		s = append(s, len(g))
	}
	return s
}

func TestMakeGroups(t *testing.T) {
	for _, k := range []struct {
		name   string
		caches []int
		want   []int // sizes
	}{
		{"one rank", caches(1), nil},
		{"as many as need none", caches(16), nil},
		{"two caches with few ranks", caches(8, 8), nil},
		{"one more", caches(17), []int{5, 6, 6}},
		{"even", caches(64), []int{8, 8, 8, 8, 8, 8, 8, 8}},
		{"many", caches(200), []int{14, 14, 14, 15, 14, 14, 15, 14, 14, 14, 15, 14, 14, 15}},
		{"very many", caches(512), slices.Repeat([]int{16}, 32)},
		{"two caches", caches(12, 12), []int{6, 6, 6, 6}},
		{"caches of eight", caches(8, 8, 8), []int{8, 8, 8}},
		{"caches of four", caches(4, 4, 4, 4, 4), []int{4, 4, 4, 4, 4}},
		{"a cache with too few", caches(3, 17), []int{6, 7, 7}},
		{"in turn", alternating(24, 2), []int{6, 6, 6, 6}},
		{"not known", slices.Repeat([]int{-1}, 20), []int{6, 7, 7}},
		{"known of some", append(caches(16), slices.Repeat([]int{-1}, 8)...), []int{8, 8, 8}},
	} {
		t.Run(k.name, func(t *testing.T) { require.Equal(t, k.want, sizes(makeGroups(k.caches))) })
	}
	require.Equal(t, [][]int{{0, 2, 4, 6, 8, 10}, {1, 3, 5, 7, 9, 11}, {12, 14, 16, 18, 20, 22}, {13, 15, 17, 19, 21, 23}},
		makeGroups(alternating(24, 2)), "ranks that share a cache")
}

// Whatever the machine, every rank is in one group, ranks and leaders are in order, and no group is large.
func TestGroupsAreWhole(t *testing.T) {
	for n := 17; n <= 300; n++ {
		for _, of := range []int{1, 2, 3, 8, n / 4, n} {
			groups := makeGroups(alternating(n, of))
			what := fmt.Sprintf("%d ranks on %d caches: %v", n, of, groups)
			all := slices.Concat(groups...)
			slices.Sort(all)
			require.Len(t, slices.Compact(all), n, what)
			for i, g := range groups {
				require.True(t, slices.IsSorted(g), what)
				require.True(t, len(g) >= smallestGroup/2 && len(g) <= largestGroup, what)
				require.True(t, i == 0 || groups[i-1][0] < g[0], what)
			}
			require.Equal(t, groups, makeGroups(alternating(n, of)), "the same on all ranks")
		}
	}
}

func TestNearOrder(t *testing.T) {
	for _, k := range []struct {
		name  string
		nodes []int
		me    int
		want  []int
	}{
		{"alone", []int{0}, 0, []int{0}},
		{"one node", []int{0, 0, 0, 0}, 2, []int{2, 3, 0, 1}},
		{"not known", []int{-1, -1, -1}, 1, []int{1, 2, 0}},
		{"two nodes", []int{0, 0, 0, 1, 1, 1}, 1, []int{1, 2, 0, 3, 4, 5}},
		{"two nodes, the second", []int{0, 0, 0, 1, 1, 1}, 4, []int{4, 5, 3, 0, 1, 2}},
		{"in turn", []int{0, 1, 0, 1, 0, 1}, 3, []int{3, 5, 1, 4, 0, 2}},
	} {
		t.Run(k.name, func(t *testing.T) { require.Equal(t, k.want, nearOrder(k.nodes, k.me)) })
	}
}
