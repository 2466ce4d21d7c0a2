package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
)

// A lower MinTime makes fewer calls; the default makes those that it always made.
func TestCallsByMinTime(t *testing.T) {
	for _, c := range []struct {
		name   string
		least  time.Duration
		change func(*Config)
		timed  [3]int // of 8 bytes, 64 KiB and 4 MiB
		warmup [3]int
	}{
		{"default", 50 * time.Millisecond, nil, [3]int{2000, 400, 20}, [3]int{200, 40, 2}},
		{"a tenth", 5 * time.Millisecond, nil, [3]int{200, 40, 5}, [3]int{20, 4, 1}},
		{"a half", 25 * time.Millisecond, nil, [3]int{1000, 200, 10}, [3]int{100, 20, 1}},
		{"hardly any", 1, nil, [3]int{5, 5, 5}, [3]int{1, 1, 1}},
		{"more", time.Second, nil, [3]int{2000, 400, 20}, [3]int{200, 40, 2}},
		{"no time", 0, nil, [3]int{2000, 400, 20}, [3]int{200, 40, 2}},
		{"given calls", 1, func(c *Config) { c.Iterations = 30 }, [3]int{30, 30, 30}, [3]int{3, 3, 3}},
		{"given untimed calls", 1, func(c *Config) { c.Warmup = 7 }, [3]int{5, 5, 5}, [3]int{7, 7, 7}},
		{"queued", 1, func(c *Config) { c.Graphs = 1 }, [3]int{20, 20, 20}, [3]int{5, 5, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default("all_reduce")
			if cfg.MinTime = c.least; c.change != nil {
				c.change(&cfg)
			}
			for i, bytes := range []int{8, 64 << 10, 4 << 20} {
				warmup, timed := cfg.calls(bytes)
				require.Equal(t, [2]int{c.warmup[i], c.timed[i]}, [2]int{warmup, timed})
			}
		})
	}
}

func TestPace(t *testing.T) {
	free := pace{}
	require.Equal(t, 5000, free.next(5000))
	p := pace{limit: time.Millisecond}
	require.Equal(t, 0, p.next(0))
	require.Equal(t, 1, p.next(5000))
	for _, c := range []struct {
		made       int
		took       float64
		want, next int
	}{
		{1, 10, 5000, 4}, // 99 would fit
		{1, 10, 3, 3},
		{1, 300, 5000, 2},
		{100, 900, 5000, 11},
		{100, 995, 5000, 0},
		{1, 1000, 5000, 0},
		{1, 5000, 5000, 0},
		{1, 0, 5000, 4}, // a clock that is too coarse
		{10_000_000, 1, 5000, 5000},
	} {
		p.made, p.took = c.made, c.took
		require.Equal(t, c.next, p.next(c.want), "%+v", c)
	}
	untimed, timed := (&Config{MaxTime: time.Second}).paces()
	require.Equal(t, []time.Duration{100 * time.Millisecond, 900 * time.Millisecond}, []time.Duration{untimed.limit, timed.limit})
	untimed, timed = (&Config{MaxTime: 1}).paces()
	require.Equal(t, []time.Duration{1, 1}, []time.Duration{untimed.limit, timed.limit}, "0 would be no limit")
}

// Nothing stops queued calls, so their number is chosen before.
func TestFit(t *testing.T) {
	cfg := Config{MaxTime: time.Millisecond}
	for _, c := range []struct {
		name                    string
		us                      float64
		warmup, timed, launches int
		want                    [3]int
	}{
		{"all fit", 1, 5, 20, 0, [3]int{5, 20, 0}},
		{"all launches fit", 1, 5, 20, 20, [3]int{5, 20, 20}},
		{"half of the calls", 100, 5, 20, 0, [3]int{1, 9, 0}},
		{"some launches", 10, 5, 20, 20, [3]int{5, 20, 3}},
		{"not one", 2000, 5, 20, 0, [3]int{1, 1, 0}},
		{"not one launch", 2000, 5, 20, 20, [3]int{1, 20, 1}},
		{"no untimed ones", 100, 0, 20, 0, [3]int{0, 10, 0}},
		{"a clock that is too coarse", 0, 5, 20, 20, [3]int{5, 20, 20}},
	} {
		warmup, timed, launches := cfg.fit(c.us, c.warmup, c.timed, c.launches)
		require.Equal(t, c.want, [3]int{warmup, timed, launches}, c.name)
	}
}

// MaxTime ends the calls on all ranks after the same one, however many were asked for.
func TestMaxTime(t *testing.T) {
	t.Setenv("UBCOLL_CUDA", "off")
	for _, c := range []struct {
		name    string
		limit   time.Duration
		calls   int // timed ones
		asked   int
		minTime time.Duration
	}{
		{"one call takes longer", 1, 1, 1000, 0},
		{"by size, and one call takes longer", 1, 1, 0, 1},
		{"all calls are shorter", time.Hour, 30, 30, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := small("all_reduce")
			cfg.MinBytes, cfg.MaxBytes, cfg.MaxTime, cfg.Iterations, cfg.MinTime, cfg.Warmup = 64, 64, c.limit, c.asked, c.minTime, -1
			rep, _, err := measure(t, 3, cfg)
			require.NoError(t, err)
			require.Equal(t, c.calls, rep.Results[0].Out.Spread.Calls)
			require.Equal(t, c.calls, rep.Results[0].In.Spread.Calls)
			for _, other := range []func(*Config){func(c *Config) { c.Loop = true }, func(c *Config) { c.Graphs = 2 }} {
				cfg := cfg
				other(&cfg)
				rep, _, err := measure(t, 2, cfg)
				require.NoError(t, err)
				require.Positive(t, rep.Results[0].Out.Time)
			}
		})
	}
	cfg := small("all_reduce")
	cfg.MinTime, cfg.MaxTime = 2*time.Millisecond, time.Millisecond
	require.NoError(t, cfg.Validate(), "MinTime is for calls by size")
	cfg.Iterations = 0
	require.ErrorIs(t, cfg.Validate(), ubcoll.ErrArgument)
	require.ErrorContains(t, cfg.Validate(), "calls of 2ms at least and 1ms at most")
	cfg.MaxTime = -1
	require.ErrorContains(t, cfg.Validate(), "want times of 0 or more")
}
