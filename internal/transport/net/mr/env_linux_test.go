package mr_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
)

// TestConfigFromEnv: the environment sets devices and relaxed ordering.
func TestConfigFromEnv(t *testing.T) {
	for _, c := range []struct {
		devices, relaxed string
		want             string
		is               bool
		says             string
	}{
		{"", "", "", true, ""},
		{"^=mlx5_0:1,rxe0", "0", "^=mlx5_0:1,rxe0", false, ""},
		{"mlx5", "1", "mlx5", true, ""},
		{"mlx5:x", "2", "", false, `UBCOLL_IB_HCA: "mlx5:x"`},
		{"mlx5:256", "2", "", false, `UBCOLL_IB_HCA: "mlx5:256"`},
		{"", "3", "", false, `UBCOLL_IB_PCI_RELAXED_ORDERING="3"`},
	} {
		t.Setenv("UBCOLL_IB_HCA", c.devices)
		t.Setenv("UBCOLL_IB_PCI_RELAXED_ORDERING", c.relaxed)
		got, err := mr.ConfigFromEnv()
		if c.says != "" {
			require.ErrorIs(t, err, fault.ErrArgument)
			require.ErrorContains(t, err, c.says)
			t.Setenv("UBCOLL_IB", "off")
			_, _, err = mr.FromEnv(slog.Default(), nil)
			require.ErrorContains(t, err, c.says, "also where it does not matter")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []any{c.want, c.is}, []any{got.Select.String(), got.Relaxed})
	}
}

// TestFromEnv: off, auto and on, with a device.
func TestFromEnv(t *testing.T) {
	open(t, mr.Config{})
	log, said := testkit.Logs(slog.LevelDebug)
	for when, there := range map[string]bool{"": false, "off": false, "auto": true, "on": true} {
		t.Setenv("UBCOLL_IB", when)
		b, absent, err := mr.FromEnv(log, nil)
		require.NoError(t, err, when)
		require.Equal(t, there, b != nil, when)
		if !there {
			require.ErrorIs(t, absent, fault.ErrNotSupported)
			require.ErrorContains(t, absent, "UBCOLL_IB=off")
		}
		require.NoError(t, b.Close())
	}
	require.Empty(t, said.String())
}
