package membership

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Ranks 0 and 1 are on the first host, 2 and 3 on the second, and so on; the last one has one.
func TestApart(t *testing.T) {
	for _, k := range []struct {
		name  string
		hosts int
		cuts  [][2]int
		gone  []int
		mine  int
		want  []int
		goes  bool // this part goes on
	}{
		{"all reach each other", 2, nil, nil, 0, nil, true},
		{"two equal parts, the first", 2, [][2]int{{0, 1}}, nil, 0, []int{2, 3}, true},
		{"two equal parts, the second", 2, [][2]int{{0, 1}}, nil, 1, []int{0, 1}, false},
		{"the lowest rank is dead", 2, [][2]int{{0, 1}}, []int{0}, 1, []int{1}, true},
		{"and its host is the smaller part", 2, [][2]int{{0, 1}}, []int{0}, 0, []int{2, 3}, false},
		{"equal parts again, and the lowest is dead", 2, [][2]int{{0, 1}}, []int{0, 2}, 0, []int{3}, true},
		{"one of three", 3, [][2]int{{0, 1}, {0, 2}}, nil, 0, []int{2, 3, 4, 5}, false},
		{"the other two", 3, [][2]int{{0, 1}, {0, 2}}, nil, 1, []int{0, 1}, true},
		{"each alone", 3, [][2]int{{0, 1}, {0, 2}, {1, 2}}, nil, 1, []int{0, 1, 4, 5}, false},
		{"two that reach each other by a third", 3, [][2]int{{0, 2}}, nil, 1, []int{4, 5}, true},
		{"the same, as the one sees it that goes", 3, [][2]int{{0, 2}}, nil, 2, []int{4, 5}, true},
		{"fewer ranks go", 3, [][2]int{{0, 2}}, []int{1}, 1, []int{0}, true},
		{"one that reaches two others by a fourth", 4, [][2]int{{1, 3}, {2, 3}}, nil, 0, []int{6, 7}, true},
		{"a cut between dead ranks", 2, [][2]int{{0, 1}}, []int{2, 3}, 0, nil, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			n := 2 * k.hosts
			var hosts [][]int
			for h := range k.hosts {
				hosts = append(hosts, []int{2 * h, 2*h + 1})
			}
			w := NewNetwork(n, hosts)
			for _, c := range k.cuts {
				require.True(t, w.Cut(c[1], c[0]))
				require.False(t, w.Cut(c[0], c[1]), "known")
			}
			require.ElementsMatch(t, k.cuts, w.Cuts())
			gone := set(n, k.gone...)
			apart := w.Apart(gone, k.mine)
			require.Equal(t, set(n, k.want...), apart)
			require.Equal(t, k.goes, Quorum(n, gone.With(apart), gone))
		})
	}
	w := NewNetwork(2, [][]int{{0}, {1}})
	for _, c := range [][2]int{{0, 0}, {0, 2}, {-1, 1}} { // of a peer that says so
		require.False(t, w.Cut(c[0], c[1]))
	}
}

// In random networks those who are left all reach each other, and at most one part of the ranks goes on.
func TestApartRandom(t *testing.T) {
	r := testkit.Random(t)
	on := 0
	for round := range testkit.Often(20_000) {
		count := 1 + r.IntN(6)
		hosts, n := make([][]int, count), 0
		for h := range hosts {
			for range 1 + r.IntN(3) {
				hosts[h], n = append(hosts[h], n), n+1
			}
		}
		w, gone := NewNetwork(n, hosts), set(n)
		for range r.IntN(2 * count) {
			w.Cut(r.IntN(count), r.IntN(count))
		}
		for range r.IntN(n) {
			gone.Add(r.IntN(n))
		}
		var parts []Set
		for h, ranks := range hosts {
			if !slices.ContainsFunc(ranks, func(r int) bool { return !gone.Has(r) }) {
				continue
			}
			apart := w.Apart(gone, h)
			all := gone.With(apart)
			require.Equal(t, gone.Count()+apart.Count(), all.Count(), "round %d", round)
			for a, these := range hosts {
				left := 0
				for _, x := range these {
					if !all.Has(x) {
						left++
					}
				}
				for b, those := range hosts {
					if left > 0 && w.apart(a, b) {
						require.False(t, slices.ContainsFunc(those, func(r int) bool { return !all.Has(r) }), "round %d: hosts %d and %d", round, a, b)
					}
				}
			}
			if Quorum(n, all, gone) && !slices.ContainsFunc(parts, all.Equal) {
				parts = append(parts, all)
				on++
			}
		}
		require.LessOrEqual(t, len(parts), 1, "round %d", round)
	}
	require.Greater(t, on, 0)
}

func TestStateBytes(t *testing.T) {
	for _, n := range []int{1, 2, 64, 65, 4095} {
		s := State{Attempt: 1<<32 - 1, Step: Refused, Gone: set(n, n-1), Done: 7}
		b := s.Append(nil)
		require.Len(t, b, Bytes(n))
		got, rest, err := Parse(append(b, "why"...), n)
		require.NoError(t, err)
		require.Equal(t, s, got)
		require.Equal(t, "why", string(rest))
		_, _, err = Parse(b[:len(b)-1], n)
		require.ErrorContains(t, err, "bytes, less than")
		if n%64 != 0 {
			b[len(b)-1] |= 0x80
			_, _, err = Parse(b, n)
			require.ErrorContains(t, err, "ranks above")
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(State{Attempt: 1, Step: Made, Gone: set(70, 3, 69)}.Append(nil), uint16(70))
	f.Fuzz(func(t *testing.T, b []byte, ranks uint16) {
		n := 1 + int(ranks)%4095
		s, rest, err := Parse(b, n)
		if err != nil {
			return
		}
		require.Equal(t, b, append(s.Append(nil), rest...))
	})
}
