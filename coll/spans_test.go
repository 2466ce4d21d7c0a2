package coll

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Elements are known one by one, in whatever order they come.
func TestSpans(t *testing.T) {
	random := testkit.Random(t)
	for range 200 {
		var a, pieces spans
		for at := 0; at < 1000; {
			n := min(1+random.IntN(100), 1000-at)
			pieces = append(pieces, span{at, n})
			at += n
		}
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		is := make([]bool, 1000)
		for _, p := range pieces {
			a.add(p.off, p.n)
			for i := range p.n {
				is[p.off+i] = true
			}
			for range 5 {
				off := random.IntN(1000)
				n := random.IntN(1 + min(1000-off, 150))
				require.Equal(t, !slices.Contains(is[off:off+n], false), a.has(off, n), "%d from %d on of %v", n, off, pieces)
			}
		}
		require.Equal(t, spans{{0, 1000}}, a)
	}
}
