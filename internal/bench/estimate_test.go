package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What makes a measurement longer makes its estimate longer.
func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		name   string
		bytes  int
		change func(*Config)
		longer bool
	}{
		{"less time", 8, func(c *Config) { c.MinTime /= 10 }, false},
		{"less time, where size alone gives the calls", 64 << 20, func(c *Config) { c.MinTime /= 10 }, false},
		{"more time", 8, func(c *Config) { c.MinTime *= 10 }, true},
		{"a limit", 64 << 20, func(c *Config) { c.MaxTime = 100 * time.Millisecond }, false},
		{"few calls", 8, func(c *Config) { c.Iterations = 3 }, false},
		{"many calls", 8, func(c *Config) { c.Iterations = 1_000_000 }, true},
		{"more checks", 4 << 20, func(c *Config) { c.Checks = 9 }, true},
		{"calls back to back", 4 << 20, func(c *Config) { c.Loop = true }, false},
		{"the cache, too", 8, func(c *Config) { c.Cache = true }, true},
		{"devices", 64 << 20, func(c *Config) { c.Device = CUDA }, false},
		{"launches", 4 << 20, func(c *Config) { c.Graphs = 100 }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Default("all_reduce")
			before := cfg.Estimate(c.bytes)
			require.Greater(t, cfg.Estimate(8*c.bytes+(8<<20)), before)
			c.change(&cfg)
			require.Equal(t, c.longer, cfg.Estimate(c.bytes) > before, "%v, %v", before, cfg.Estimate(c.bytes))
			require.NotEqual(t, before, cfg.Estimate(c.bytes))
		})
	}
	cfg := Default("all_reduce")
	cfg.MinTime = time.Second
	require.Greater(t, cfg.Estimate(8), time.Second, "the calls alone take that long")
	cfg.MaxTime = 20 * time.Second
	cfg.Iterations = maxIterations
	require.InDelta(t, 20*time.Second, cfg.Estimate(8), float64(time.Second))
}
