package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestOverlapPercent(t *testing.T) {
	for _, c := range []struct {
		name                   string
		overall, compute, comm float64
		want                   float64
	}{
		{"hidden", 10, 10, 10, 100},
		{"half hidden", 15, 10, 10, 50},
		{"one after the other", 20, 10, 10, 0},
		{"they hold each other up", 35, 10, 10, 0},
		{"a call longer than the computation", 30, 10, 40, 50},
		{"a clock that is too coarse", 10, 10, 0, 0},
		{"by chance less than the computation", 9.9, 10, 10, 101},
	} {
		o := newOverlap(c.overall, c.compute, c.comm)
		require.InDelta(t, c.want, o.Percent, 1e-9, c.name)
		require.Equal(t, []float64{c.overall, c.compute, c.comm}, []float64{o.Overall, o.Compute, o.Comm}, c.name)
	}
}

// Every collective has it, blocking in its row or not, in graphs and in groups.
func TestOverlap(t *testing.T) {
	for _, c := range testkit.Sample(3, []struct {
		name, op string
		change   func(*Config)
	}{
		{"blocking rows", "all_reduce", func(*Config) {}},
		{"Go slices", "all_gather", func(c *Config) { c.Buffers = GoSlices }},
		{"rooted", "broadcast", func(c *Config) { c.Root = -1 }},
		{"no data", barrier, func(*Config) {}},
		{"no variant in place", "alltoallv", func(*Config) {}},
		{"groups", "reduce_scatter", func(c *Config) { c.Aggregate = 3 }},
		{"graphs", "all_reduce", func(c *Config) { c.Graphs = 2 }},
		{"loop", "all_reduce", func(c *Config) { c.Loop = true }},
		{"one way", "all_reduce", func(c *Config) { c.Only = InPlace }},
	}) {
		t.Run(c.name, func(t *testing.T) {
			cfg := small(c.op)
			cfg.Overlap = true
			c.change(&cfg)
			rep, table, err := measure(t, 3, cfg)
			require.NoError(t, err)
			require.Contains(t, table, "# Overlap with computation (us)\n")
			require.NotEmpty(t, rep.Results)
			for _, row := range rep.Results {
				for _, v := range []*Result{row.Out, row.In} {
					if v == nil {
						continue
					}
					require.Positive(t, v.Overlap.Comm)
					require.Positive(t, v.Overlap.Overall)
					require.Equal(t, newOverlap(v.Overlap.Overall, v.Overlap.Compute, v.Overlap.Comm), v.Overlap)
				}
			}
		})
	}
	rep, table, err := measure(t, 2, small("all_reduce"))
	require.NoError(t, err)
	require.Nil(t, rep.Results[0].Out.Overlap)
	require.NotContains(t, table, "Overlap", "it takes time, and has to be asked for")
}

func TestOverlapOnDevice(t *testing.T) {
	testkit.LongOrRace(t)
	needDevices(t, 2)
	for _, graphs := range []int{0, 2} {
		cfg := small("all_reduce")
		cfg.Device, cfg.Overlap, cfg.Graphs = CUDA, true, graphs
		rep, _, err := measure(t, 2, cfg)
		require.NoError(t, err)
		require.Positive(t, rep.Results[0].Out.Overlap.Comm)
		require.Positive(t, rep.Results[0].In.Overlap.Comm)
		require.Zero(t, rep.Wrong.Count)
	}
}

func TestOverlapOfCollectivesOnly(t *testing.T) {
	for _, name := range Names() {
		cfg := Default(name)
		cfg.Overlap = true
		err := cfg.Validate()
		if operationOf(name).trips == 0 {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, ubcoll.ErrArgument, name)
		require.ErrorContains(t, err, "overlap is measured of collectives, not of "+name)
	}
}

// What is computed stays a number of the usual kind, whose arithmetic always takes as long.
func TestComputation(t *testing.T) {
	var c computation
	c.run(0)
	require.Zero(t, c.x)
	c.run(100_000)
	require.InDelta(t, 1, c.x, 1e-6)
	c.calibrate()
	require.Positive(t, c.speed)
}
