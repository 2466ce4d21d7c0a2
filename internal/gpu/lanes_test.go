package gpu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// listed returns the lanes of a set as Next finds them.
func (l *LaneSet) listed() (all []int) {
	for i := l.Next(0); i >= 0; i = l.Next(i + 1) {
		all = append(all, i)
	}
	return all
}

func TestLaneSet(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for range 300 {
		var s LaneSet
		var want []int
		for lane := range 2 * engine.MaxRanks {
			if r.IntN(1+r.IntN(40)) == 0 {
				want = append(want, lane)
				s.Add(lane)
			}
		}
		require.Equal(t, want, s.listed())
		require.Equal(t, len(want), s.Len())
		require.Equal(t, len(want) == 0, s.Empty())
		for i, lane := range want {
			require.True(t, s.Has(lane))
			s.Remove(lane)
			require.False(t, s.Has(lane))
			require.Equal(t, len(want)-i-1, s.Len())
		}
	}
	all, four := LanesTo(2*engine.MaxRanks), LanesTo(4)
	require.Equal(t, 2*engine.MaxRanks, all.Len())
	require.Equal(t, []int{0, 1, 2, 3}, four.listed())
}
