package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
)

func TestMessageRate(t *testing.T) {
	for _, c := range []struct {
		name  string
		pairs int
		us    float64
		want  float64
	}{
		{"one pair", 1, 1, 1e6},
		{"three pairs", 3, 0.5, 6e6},
		{"slow", 1, 2e6, 0.5},
		{"a clock that is too coarse", 2, 0, 0},
	} {
		require.InDelta(t, c.want, messageRate(c.pairs, c.us), 1e-9, c.name)
	}
}

// Bandwidth is that of all pairs.
func TestMultiPairBandwidth(t *testing.T) {
	for _, c := range []struct {
		ranks    int
		alg, bus float64
	}{{2, 4, 4}, {4, 4, 8}, {6, 4, 12}} {
		for _, op := range []string{multiPair, putBandwidth} {
			alg, bus := Bandwidth(op, c.ranks, 8000, 2)
			require.InDelta(t, c.alg, alg, 1e-9)
			require.InDelta(t, c.bus, bus, 1e-9)
		}
	}
}

func TestHalves(t *testing.T) {
	for _, n := range []int{2, 4, 6} {
		for r := range n {
			s := halves(place{ranks: n, rank: r, root: -1}, 10)
			if r < n/2 {
				require.Equal(t, shape{size: 10, param: 10, src: span{0, 10}}, s)
				continue
			}
			require.Equal(t, shape{size: 10, param: 10, dst: span{0, 10}, want: []piece{{0, 10, r - n/2, 0}}}, s)
		}
	}
}

// The rate and the bandwidths of a row are all of its time, which is that of one message.
func TestMultiPair(t *testing.T) {
	for _, loop := range []bool{false, true} {
		cfg := small(multiPair)
		cfg.Window, cfg.Loop = 5, loop
		rep, table, err := measure(t, 4, cfg)
		require.NoError(t, err)
		require.Len(t, rep.Results, 3)
		require.Equal(t, 5, rep.Config.Window)
		for _, r := range rep.Results {
			require.InEpsilon(t, 2e6/r.Out.Time, r.Out.Rate, 1e-9)
			require.InDelta(t, float64(r.Size)*r.Out.Rate/1e9, r.Out.BusBW, 1e-9)
			require.InDelta(t, 2*r.Out.AlgBW, r.Out.BusBW, 1e-9)
		}
		require.Contains(t, table, "# [ pairs: 2 ] [ window size: 5 ]\n")
		require.NotContains(t, table, "t_typical")
	}
}

func TestMultiPairNeedsPairs(t *testing.T) {
	for _, n := range []int{1, 3} {
		_, table, err := measure(t, n, small(multiPair))
		require.ErrorIs(t, err, ubcoll.ErrArgument)
		require.ErrorContains(t, err, "mbw_mr has rank i send to rank i+n/2: want an even number of ranks, not")
		require.Empty(t, table)
	}
	cfg := small(multiPair)
	cfg.Window = maxWindow + 1
	require.ErrorIs(t, cfg.Validate(), ubcoll.ErrLimit)
}

// A call is a window of messages, by which the number of calls goes.
func TestMultiPairCalls(t *testing.T) {
	cfg := Default(multiPair)
	for _, c := range []struct{ bytes, want int }{{8, 2000}, {512, 2000}, {1024, 400}, {64 << 10, 20}} {
		_, timed := cfg.calls(c.bytes)
		require.Equal(t, c.want, timed, c.bytes)
	}
}
