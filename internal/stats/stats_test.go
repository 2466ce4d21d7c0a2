package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpread(t *testing.T) {
	us := make([]float64, 200)
	for i := range us {
		us[i] = float64(200 - i) // 1 to 200, not in order
	}
	require.Equal(t, Spread{Calls: 200, Min: 1, Median: 100, Mean: 100.5, P95: 190, P99: 198, P999: 200, Max: 200}, func() Spread {
		s := SpreadOf(us)
		require.InDelta(t, 57.73, s.StdDev, 0.01)
		require.InDelta(t, 57.45, s.CV, 0.01)
		s.StdDev, s.CV = 0, 0
		return s
	}())
	require.Equal(t, 5.0, SpreadOf([]float64{5}).P999)
	us = us[:0]
	for i := range 2000 {
		us = append(us, float64(i))
	}
	require.Equal(t, []float64{1979, 1997}, []float64{SpreadOf(us).P99, SpreadOf(us).P999}) // the 1980th and the 1998th value
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   float64
	}{
		{"one", []float64{3}, 3},
		{"odd", []float64{9, 1, 4}, 4},
		{"even", []float64{9, 1, 4, 5}, 4.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.values)
			require.Equal(t, c.want, Median(c.values))
			require.Equal(t, before, c.values, "it sorts a copy")
		})
	}
	require.True(t, math.IsNaN(Median(nil)))
}

// The critical values are from the tables of Mann and Whitney (1947) and every later book: two-sided, 5 %.
func TestBelow(t *testing.T) {
	for _, c := range []struct{ n, m, critical int }{
		{4, 4, 0}, {5, 5, 2}, {5, 8, 6}, {7, 7, 8}, {8, 10, 17}, {10, 10, 23}, {15, 15, 64}, {20, 20, 127},
	} {
		below := belowOf(c.n, c.m)
		require.LessOrEqual(t, below(c.critical), 0.025, "%d, %d", c.n, c.m)
		require.Greater(t, below(c.critical+1), 0.025, "%d, %d", c.n, c.m)
		require.InDelta(t, 1, below(c.n*c.m), 1e-12)
	}
	require.InDelta(t, 4.0/252, belowOf(5, 5)(2), 1e-15) // counted by hand: 0 and 1 in one way each, 2 in two
	require.InDelta(t, 1.0/20, belowOf(3, 3)(0), 1e-15)
	exact, approximate := belowOf(50, 50), belowOf(50, 51)
	require.InDelta(t, exact(960), approximate(979), 0.002) // at 2 %, where the approximation takes over
}

func TestRatio(t *testing.T) {
	inf := []float64{10, 11, 12, 13, 14}
	for _, c := range []struct {
		name string
		a, b []float64
		want Ratio
	}{
		{"one beside one", []float64{2}, []float64{3}, Ratio{1.5, 1.5, 1.5, 0}},
		{"three beside three, for which there is no 95 %", []float64{1, 2, 4}, []float64{8, 8, 16}, Ratio{4, 2, 16, 0.9}},
		// The ratios in order: 10/14, 10/13, 11/14, ...: the third smallest and the third largest.
		{"five beside themselves", inf, inf, Ratio{1, 11.0 / 14, 14.0 / 11, 1 - 2*4.0/252}},
		{"twice as long", inf, []float64{20, 22, 24, 26, 28}, Ratio{2, 22.0 / 14, 28.0 / 11, 1 - 2*4.0/252}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := RatioOf(c.a, c.b, 0.95)
			for i, want := range []float64{c.want.Value, c.want.Low, c.want.High, c.want.Confidence} {
				require.InDelta(t, want, []float64{got.Value, got.Low, got.High, got.Confidence}[i], 1e-12)
			}
		})
	}
	require.True(t, math.IsNaN(RatioOf(nil, inf, 0.95).Value))
}

// In 95 of 100 draws, an interval of 95 % contains the true ratio, for any distribution. The seed is fixed.
func TestRatioCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(factor float64) []float64 {
		s := make([]float64, 7)
		for i := range s {
			s[i] = factor * (1 + r.ExpFloat64())
		}
		return s
	}
	const rounds = 2000
	inside := 0
	for range rounds {
		if x := RatioOf(draw(1), draw(1.3), 0.95); x.Low <= 1.3 && 1.3 <= x.High {
			inside++
		}
	}
	require.Greater(t, float64(inside)/rounds, 0.94)
	require.Less(t, float64(inside)/rounds, 0.99)
}

func TestGeometricMean(t *testing.T) {
	require.InDelta(t, 4, GeometricMean([]float64{2, 8}), 1e-12)
	require.InDelta(t, 1, GeometricMean([]float64{0.5, 2, 1}), 1e-12)
	require.True(t, math.IsNaN(GeometricMean(nil)))
}

// The ranks of the interval are those of tables of the sign test: two-sided, 5 %.
func TestMedianOf(t *testing.T) {
	upTo := func(n int) (values []float64) {
		for i := range n {
			values = append(values, float64(n-i)) // 1 to n, not in order
		}
		return values
	}
	for _, c := range []struct {
		name string
		n    int
		want Interval
	}{
		{"one", 1, Interval{1, 1, 1, 0}},
		{"three have no 95 %", 3, Interval{2, 1, 3, 0.75}},
		{"five neither", 5, Interval{3, 1, 5, 0.9375}},
		{"six", 6, Interval{3.5, 1, 6, 0.96875}},
		{"nine", 9, Interval{5, 2, 8, 1 - 2*10.0/512}},
		{"twenty", 20, Interval{10.5, 6, 15, 0.95861}},
		{"a thousand", 1000, Interval{500.5, 469, 532, 0.9537}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := MedianOf(upTo(c.n), 0.95)
			require.InDelta(t, c.want.Confidence, got.Confidence, 1e-4)
			got.Confidence = c.want.Confidence
			require.Equal(t, c.want, got)
		})
	}
	require.True(t, math.IsNaN(MedianOf(nil, 0.95).Median))
}
