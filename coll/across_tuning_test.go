package coll_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
)

// TestAcrossTuning: the file that UBCOLL_TUNING names says how many connections ranks of two hosts have, and what ways cost.
func TestAcrossTuning(t *testing.T) {
	for _, k := range []struct {
		name, hosts string
		n           int
		want        string
	}{
		{"nothing", `{}`, 20_000, "recursive doubling over 2 hosts by default costs, 2 lanes, tcp lo: copied by the kernel"},
		{"a message costs nothing", `{"message_ns":0}`, 20_000, "halving-doubling over 2 hosts, 2 lanes, tcp lo: copied by the kernel"},
		{"only messages cost", `{"send_ps":0,"swap_ps":0,"combine_ps":0,"around_ps":0}`, 500_000, "recursive doubling over 2 hosts, 2 lanes, tcp lo: copied by the kernel"},
		{"three connections", `{"connections":3}`, 500_000,
			"halving-doubling over 2 hosts by default costs, 2 lanes, tcp lo (3 connections): copied by the kernel"},
		{"eight connections", `{"connections":8}`, 500_000,
			"halving-doubling over 2 hosts by default costs, 2 lanes, tcp lo (8 connections): copied by the kernel"},
	} {
		t.Run(k.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "table.json")
			require.NoError(t, os.WriteFile(name, fmt.Appendf(nil, `{"version":2,"hosts":%s}`, k.hosts), 0o600))
			t.Setenv(env.Tuning.Name, name)
			t.Setenv(env.Net.Name, "lo")
			requireAll(t, onHosts(t, "aabb", func(c *ubcoll.Comm) error {
				for turn, n := range []int{1, 1000, 500_000, 3, 300_000} {
					if err := checkAcross(c, n, turn); err != nil {
						return err
					}
				}
				v := ubcoll.Of(make([]float32, k.n))
				if err := coll.AllReduce(context.Background(), c, v, v, ubcoll.Sum); err != nil {
					return err
				}
				if o := c.LastOp(); c.Rank() == 0 && o.Levels[1].String() != k.want {
					return fmt.Errorf("LastOp says %q, not %q", o.Levels[1], k.want)
				}
				return nil
			}))
		})
	}
}
