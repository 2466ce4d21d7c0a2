package engine

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestLateness: the median of counted times is close to that of the times.
func TestLateness(t *testing.T) {
	random := testkit.Random(t)
	for _, n := range []int{1, 2, 3, 1000, 200_000} {
		for _, most := range []float64{1e5, 1e9, 1e12} {
			var l lateness
			var all []time.Duration
			for range n {
				d := 20*time.Microsecond + time.Duration(math.Exp(random.Float64()*math.Log(most)))
				l.add(d)
				all = append(all, d)
			}
			slices.Sort(all)
			require.EqualValues(t, n, l.calls)
			require.Equal(t, all[n-1], l.longest)
			require.InEpsilon(t, float64(all[(n-1)/2]), float64(l.median()), 0.15, "%d up to %v", n, all[n-1])
		}
	}
	var none lateness
	for i := range none.counts {
		require.Equal(t, i, bucket(middle(i)))
	}
	require.Equal(t, 0, bucket(0))
	require.Equal(t, len(none.counts)-1, bucket(math.MaxInt64))
}
