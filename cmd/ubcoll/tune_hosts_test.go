package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// Between hosts all ways are measured, and the file gets what they cost. All else that it has stays.
func TestTuneHosts(t *testing.T) {
	cfg, _, err := tuneSizes(measure.Auto, "64K")
	require.NoError(t, err)
	cfg.Iterations, cfg.Warmup = 2, 1
	old := tuning.File{Machine: "old", Host: map[string]int{"push_from": 1}, Hosts: map[string]int{"connections": 2}}
	j := tuneJob{name: filepath.Join(t.TempDir(), "table.json"), device: measure.Auto, host: cfg, rounds: 1, old: old}
	var table, out bytes.Buffer
	o := ubcoll.Options{Timeout: testkit.Limit}
	require.NoError(t, conform.Block(2, 2).Run(t.Context(), o, func(ctx context.Context, c *ubcoll.Comm) error {
		before := *(*inside.Comm)(c).View().Team().Tuning()
		err := j.run(ctx, c, &table, &out)
		if c.Rank() == 3 {
			require.Equal(t, before, *(*inside.Comm)(c).View().Team().Tuning())
		}
		return err
	}))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 17, "each way of each operation")
	require.Regexp(t, `^tune: round 1 of 1: between hosts: all_reduce, doubling, \d+s$`, lines[0])

	f, err := tuning.Read(j.name)
	require.NoError(t, err)
	require.Equal(t, old.Host, f.Host)
	require.Equal(t, "2 hosts, 4 ranks, tcp", f.Network)
	fitted := f.Table()
	got := fitted.Hosts
	require.Equal(t, 2, got.Connections)
	require.False(t, fitted.Assumed(false))
	for _, cost := range []int{got.Agree, got.Message, got.Send, got.Swap, got.Combine, got.Relay, got.Around} {
		require.Positive(t, cost)
	}

	j.device = measure.CUDA
	require.ErrorContains(t, conform.Block(2, 1).Run(t.Context(), o, func(ctx context.Context, c *ubcoll.Comm) error {
		return j.run(ctx, c, &table, &out)
	}), "devices are measured on one host")
}
