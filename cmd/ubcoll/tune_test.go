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
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// A measurement that takes a minute or two says what it does.
func TestProgress(t *testing.T) {
	cfg, _, err := tuneSizes(measure.Host, "")
	require.NoError(t, err)
	cfg.MaxBytes, cfg.Iterations = 128, 2
	j := tuneJob{name: filepath.Join(t.TempDir(), "table.json"), device: measure.Auto, host: cfg, rounds: 3,
		old: tuning.File{Machine: "old", Host: map[string]int{"push_from": 1}, Device: map[string]int{"push_from": 12345}}}
	var table, out bytes.Buffer
	err = ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		return j.run(ctx, c, &table, &out)
	})
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 3*(len(algorithms)-1)) // no groups
	require.Regexp(t, `^tune: round 1 of 3: eager \(1 of 15\), \d+s$`, lines[0])
	require.Regexp(t, `^tune: round 3 of 3: push with streaming \(15 of 15\), \d+s$`, lines[14])

	f, err := tuning.Read(j.name)
	require.NoError(t, err)
	require.Equal(t, string(f.Bytes())+"# measured on 2 ranks; use it with UBCOLL_TUNING="+j.name+"\n", table.String())
	require.Len(t, f.Host, 5)
	require.Equal(t, tuning.Machine(), f.Machine)
	require.Equal(t, j.old.Device, f.Device, "what was measured on devices stays")
}

func TestChoose(t *testing.T) {
	for _, k := range []struct {
		name string
		best map[int][]float64 // eager, one-shot, push, two-shot, push with streaming, groups if there are any
		want tuning.Table
	}{
		{"each in turn", map[int][]float64{
			64: {1, 2, 3, 4, 9}, 1024: {1, 2, 3, 4, 9}, 4096: {5, 4, 6, 7, 9}, 65536: {90, 80, 70, 75, 90},
			1 << 20: {900, 800, 700, 750, 690}},
			tuning.Table{EagerTotal: 2048, OneShotTotal: 8192, PushFrom: 65536, StreamFrom: 1 << 20}},
		{"push everywhere", map[int][]float64{64: {1, 2, 1.5, 4, 9}, 1024: {5, 2, 1, 4, 9}},
			tuning.Table{EagerTotal: 128, PushFrom: 64, StreamFrom: never}},
		{"push never", map[int][]float64{64: {3, 2, 9, 1, 9}, 1024: {5, 2, 9, 1, 9}},
			tuning.Table{PushFrom: never, StreamFrom: 64}},
		{"groups while small", map[int][]float64{64: {2, 3, 9, 3, 9, 1}, 1024: {5, 2, 9, 3, 9, 2}, 4096: {9, 7, 9, 8, 9, 8}},
			tuning.Table{EagerTotal: 128, OneShotTotal: 8192, PushFrom: never, StreamFrom: 4096, CombineUpTo: 1024}},
		{"groups beyond what they can", map[int][]float64{8192: {9, 3, 9, 9, 9, 2}, 16384: {9, 3, 9, 9, 9, 2}},
			tuning.Table{OneShotTotal: 32768, PushFrom: never, StreamFrom: 16384, CombineUpTo: 8192}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var got tuning.Table
			choose(&got, k.best, 2)
			require.Equal(t, k.want, got)
		})
	}
}
