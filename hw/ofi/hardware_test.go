package ofi

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestFindHardware(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  []string
	}{
		"nothing": {nil, nil},
		"EFA, two devices": {fstest.MapFS{
			"sys/class/infiniband/rdmap0s6/device/vendor": file("0x1d0f\n"), "sys/class/infiniband/rdmap0s6/device/device": file("0xefa1\n"),
			"sys/class/infiniband/rdmap1s6/device/vendor": file("0x1d0f\n"), "sys/class/infiniband/rdmap1s6/device/device": file("0xefa1\n"),
		}, []string{"EFA"}},
		"another device of that vendor": {fstest.MapFS{
			"sys/class/infiniband/x/device/vendor": file("0x1d0f\n"), "sys/class/infiniband/x/device/device": file("0xec20\n"),
		}, nil},
		"ConnectX": {fstest.MapFS{
			"sys/class/infiniband/mlx5_0/device/vendor": file("0x15b3\n"), "sys/class/infiniband/mlx5_0/device/device": file("0x101d\n"),
		}, nil},
		"a device in software": {fstest.MapFS{"sys/class/infiniband/rxe0/node_type": file("1: CA\n")}, nil},
		"Slingshot":            {fstest.MapFS{"sys/class/cxi/cxi0/device": file("")}, []string{"Slingshot (cxi)"}},
		"Omni-Path":            {fstest.MapFS{"dev/hfi1_0": file("")}, []string{"Omni-Path (hfi1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, h := range FindHardware(c.files) {
				got = append(got, h.Name)
				require.NotEmpty(t, h.Providers)
			}
			require.Equal(t, c.want, got)
		})
	}
}
