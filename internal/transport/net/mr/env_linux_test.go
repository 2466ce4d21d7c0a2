package mr_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/verbs"
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
			_, _, err = mr.FromEnv(slog.Default(), true, "", "", nil)
			require.ErrorContains(t, err, c.says, "also where it does not matter")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []any{c.want, c.is}, []any{got.Select.String(), got.Relaxed})
		require.Equal(t, verbs.DefaultPath(), got.Path)
		require.Equal(t, 1, got.QueuePairs)
	}
}

// TestGDRFromEnv: the environment says whether memory of devices is registered.
func TestGDRFromEnv(t *testing.T) {
	for value, want := range map[string]string{"": "auto", "auto": "auto", "on": "on", "off": "off"} {
		t.Setenv("UBCOLL_GDR", value)
		got, err := mr.ConfigFromEnv()
		require.NoError(t, err)
		require.Equal(t, want, got.GDR)
	}
	t.Setenv("UBCOLL_GDR", "sometimes")
	_, err := mr.ConfigFromEnv()
	require.ErrorIs(t, err, fault.ErrArgument)
	require.ErrorContains(t, err, `UBCOLL_GDR="sometimes"`)
}

// TestPathFromEnv: the environment says how packets travel.
func TestPathFromEnv(t *testing.T) {
	all := map[string]string{"GID_INDEX": "3", "TC": "106", "SL": "5", "TIMEOUT": "18", "RETRY_CNT": "6", "PKEY": "2",
		"QPS_PER_CONNECTION": "4"}
	for name, value := range all {
		t.Setenv("UBCOLL_IB_"+name, value)
	}
	got, err := mr.ConfigFromEnv()
	require.NoError(t, err)
	want := verbs.DefaultPath()
	want.GIDIndex, want.TrafficClass, want.ServiceLevel, want.Timeout, want.Retries, want.PKeyIndex = 3, 106, 5, 18, 6, 2
	require.Equal(t, want, got.Path)
	require.Equal(t, 4, got.QueuePairs)
	for name, value := range map[string]string{"GID_INDEX": "256", "TC": "256", "SL": "16", "TIMEOUT": "0", "RETRY_CNT": "8", "PKEY": "-1",
		"QPS_PER_CONNECTION": "9"} {
		t.Setenv("UBCOLL_IB_"+name, value)
		_, err := mr.ConfigFromEnv()
		require.ErrorIs(t, err, fault.ErrArgument)
		require.ErrorContains(t, err, "UBCOLL_IB_"+name)
		t.Setenv("UBCOLL_IB_"+name, all[name])
	}
}

// TestFromEnv: off, auto and on, with a device, on one host and on several.
func TestFromEnv(t *testing.T) {
	open(t, mr.Config{})
	t.Setenv("UBCOLL_REQUIRE", "")
	log, said := testkit.Logs(slog.LevelDebug)
	for _, k := range []struct {
		when    string
		several bool
		wanted  string
		absent  string
	}{
		{"off", true, "", "UBCOLL_IB=off"},
		{"", true, "", ""},
		{"", false, "", "UBCOLL_IB=auto, and all ranks are on one host"},
		{"auto", true, "", ""},
		{"auto", false, "", "UBCOLL_IB=auto, and all ranks are on one host"},
		{"on", true, "", ""},
		{"on", false, "", ""},
		{"on", true, "tcp", "Options.Net is tcp"},
		{"on", false, "tcp", ""},
		{"off", false, "verbs", "UBCOLL_IB=off"},
		{"auto", true, "verbs", ""},
		{"auto", false, "verbs", "UBCOLL_IB=auto, and all ranks are on one host"},
	} {
		t.Setenv("UBCOLL_IB", k.when)
		b, absent, err := mr.FromEnv(log, k.several, k.wanted, "", nil)
		require.NoError(t, err, k.when)
		require.Equal(t, k.absent == "", b != nil, k.when)
		if b == nil {
			require.ErrorIs(t, absent, fault.ErrNotSupported)
			require.ErrorContains(t, absent, k.absent)
		}
		require.NoError(t, b.Close())
	}
	require.Empty(t, said.String())
	for _, k := range [][3]string{
		{"off", "", "verbs"}, {"auto", "verbs", "tcp"},
	} {
		t.Setenv("UBCOLL_IB", k[0])
		t.Setenv("UBCOLL_REQUIRE", k[1])
		_, _, err := mr.FromEnv(log, true, k[2], "", nil)
		require.ErrorIs(t, err, fault.ErrNotSupported)
		require.ErrorContains(t, err, "Options.Net is "+k[2]+", and UBCOLL_")
	}
}
