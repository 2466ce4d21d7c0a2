//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
)

func TestInfoRDMA(t *testing.T) {
	for name, c := range map[string]struct {
		knobs verbstest.Knobs
		says  []string
	}{
		"two devices on Ethernet": {verbstest.Knobs{"DEVICES": "2", "LINK": "Ethernet"},
			[]string{"double0:1 active, Ethernet", "double1:1 active, Ethernet", "RoCE v2, GID"}},
		"InfiniBand":                  {verbstest.Knobs{"LINK": "InfiniBand"}, []string{"double0:1 active, InfiniBand", "LID"}},
		"a port that is down":         {verbstest.Knobs{"PORT": "down"}, []string{"double0:1 down"}},
		"with a GPU":                  {verbstest.Knobs{}, []string{"GPUDirect RDMA: dma-bufs, nvidia_peermem is not loaded; double0 has an unknown place"}},
		"a device that will not open": {verbstest.Knobs{"FAIL": "open_device:*:EACCES"}, []string{"double0 ibv_open_device", "permission denied"}},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "with a GPU" && cuda.Have().Err != nil {
				t.Skip(cuda.Have().Err)
			}
			verbstest.Over(t, c.knobs, func(t *testing.T) {
				var out strings.Builder
				require.NoError(t, info(nil, &out))
				flat := strings.Join(strings.Fields(out.String()), " ")
				for _, s := range c.says {
					require.Contains(t, flat, s)
				}
			})
		})
	}
}
