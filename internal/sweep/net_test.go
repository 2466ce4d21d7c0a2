//go:build cgo

package sweep

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestNet: between hosts a run measures every network that it is asked for, each over its own wires, as far as the machine has
// it; on one host there is nothing to choose.
func TestNet(t *testing.T) {
	const text = `[sweep]
operation = ["all_reduce", "channel"]
bytes     = "64K"
variant   = "put"
net       = ["tcp", "auto", "verbs"]
[run]
iterations = 1
repeats    = 2
`
	for _, k := range []struct {
		name    string
		ranks   conform.Layout
		devices string
		want    map[string]string // wires, by what was asked for
		skips   string
	}{
		{"devices", conform.Block(1, 1), "1", map[string]string{"": "verbs double0:1", "tcp": "tcp lo", "verbs": "verbs double0:1"}, ""},
		{"no device", conform.Block(1, 1), "0", map[string]string{"": "tcp lo", "tcp": "tcp lo"}, "Options.Net is verbs: no RDMA device"},
		{"one host", conform.Block(2), "1", map[string]string{"": ""}, "tcp is between hosts, and these ranks are on one"},
	} {
		t.Run(k.name, func(t *testing.T) {
			verbstest.Over(t, verbstest.Knobs{"SILENT": "1", "DEVICES": k.devices}, func(t *testing.T) {
				t.Setenv("UBCOLL_CUDA", "off")
				t.Setenv("UBCOLL_IB", "auto")
				t.Setenv("UBCOLL_REQUIRE", "")
				t.Setenv("UBCOLL_NET", "lo")
				s, err := Parse("x.toml", []byte(text))
				require.NoError(t, err)
				dir := t.TempDir()
				var out bytes.Buffer // rank 0 alone writes
				o := ubcoll.Options{Timeout: testkit.Limit}
				require.NoError(t, k.ranks.Run(t.Context(), o, func(ctx context.Context, c *ubcoll.Comm) error {
					return Measure(ctx, c, &Job{Spec: s, Config: text, Dir: dir, Out: &out, Options: o})
				}))
				require.Contains(t, out.String(), k.skips)
				_, records, err := Read(dir)
				require.NoError(t, err)
				got, count := map[string]string{}, map[string]int{}
				for _, r := range records {
					got[r.Net] = r.Wire
					count[r.Net+" "+r.Operation]++
					require.Zero(t, *r.Wrong, r)
				}
				require.Equal(t, k.want, got)
				for net := range k.want {
					require.Equal(t, []int{2, 2}, []int{count[net+" all_reduce"], count[net+" channel"]})
				}
			})
		})
	}
}
