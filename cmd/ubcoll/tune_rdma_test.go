//go:build cgo

package main

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	measure "github.com/ubcoll/ubcoll/internal/bench"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// Where all ranks have RDMA devices, what is measured between hosts are the costs of RDMA. Those of TCP stay.
func TestTuneRDMA(t *testing.T) {
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		t.Setenv("UBCOLL_IB", "auto")
		cfg, _, err := tuneSizes(measure.Auto, "64K")
		require.NoError(t, err)
		cfg.Iterations, cfg.Warmup = 2, 1
		old := tuning.File{Network: "old", Hosts: map[string]int{"swap_ps": 7}}
		j := tuneJob{name: filepath.Join(t.TempDir(), "table.json"), device: measure.Auto, host: cfg, rounds: 1, old: old}
		var table, out bytes.Buffer
		require.NoError(t, conform.Block(1, 1).Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
			before := *(*inside.Comm)(c).View().Team().Tuning()
			err := j.run(ctx, c, &table, &out)
			if c.Rank() == 1 {
				require.Equal(t, before, *(*inside.Comm)(c).View().Team().Tuning())
			}
			return err
		}))
		f, err := tuning.Read(j.name)
		require.NoError(t, err)
		require.Equal(t, "2 hosts, 2 ranks, verbs", f.Fabric)
		require.Equal(t, []any{old.Network, old.Hosts}, []any{f.Network, f.Hosts})
		fitted := f.Table()
		require.False(t, fitted.Assumed(true))
		for _, cost := range []int{fitted.RDMA.Agree, fitted.RDMA.Message, fitted.RDMA.Send, fitted.RDMA.Swap} {
			require.Positive(t, cost)
		}
	})
}
