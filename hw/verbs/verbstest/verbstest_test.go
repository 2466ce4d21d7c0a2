package verbstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDouble checks the double's rules with a program in C that can break each of them.
func TestDouble(t *testing.T) {
	lib := Library(t)
	walk := filepath.Join(t.TempDir(), "walk")
	cc := compiler(t)
	out, err := exec.Command(cc[0], append(cc[1:], "-std=gnu11", "-Wall", "-Werror", "-g", "-o", walk, "testdata/walk.c",
		lib, "-pthread")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	two := Knobs{"DEVICES": "2"}
	for _, c := range []struct {
		name  string
		args  string
		knobs Knobs
		dies  string
	}{
		{"data", "data", nil, ""},
		{"data between devices", "data", two, ""},
		{"data over Ethernet", "data", Knobs{"LINK": "Ethernet", "DEVICES": "2"}, ""},
		{"data in order", "data", Knobs{"IN_ORDER": "1"}, ""},
		{"refusals", "refusals", two, ""},
		{"regions", "regions", two, ""},
		{"states", "states", nil, ""},
		{"states over Ethernet", "states", Knobs{"LINK": "Ethernet"}, ""},
		{"capacity", "capacity", nil, ""},
		{"overrun", "overrun", nil, ""},
		{"waits", "waits", nil, ""},
		{"shared", "shared", two, ""},
		{"channels", "channels", nil, ""},
		{"ports", "ports", two, ""},
		{"told", "told", nil, ""},
		{"described", "described", nil, ""},
		{"described over Ethernet", "described", Knobs{"LINK": "Ethernet"}, ""},
		{"short contexts", "described short", Knobs{"EXTENSION": "short"}, ""},
		{"old contexts", "described none", Knobs{"EXTENSION": "none"}, ""},
		{"unacknowledged", "unacknowledged", Knobs{"PATIENCE": "0"}, "destroy_cq waits for ever: 1 events were taken, 0 acknowledged"},
		{"overacknowledged", "overacknowledged", nil, "ack_cq_events: 1 events, but 0 were taken"},
		{"destroyed", "destroyed", nil, "post_send: this queue pair was destroyed"},
		{"no such knob", "data", Knobs{"PROT": "down"}, "there is no knob PROT=down"},
		{"no such call", "data", Knobs{"FAIL": "reg:1"}, "FAIL: what is reg?"},
		{"no such status", "data", Knobs{"STATUS": "WRITE:1:BAD"}, "STATUS: what is BAD?"},
		{"no number", "data", Knobs{"ODP": "yes"}, "ODP=yes: a number is wanted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), walk, strings.Fields(c.args)...)
			cmd.Env = Environ(t, c.knobs)
			out, err := cmd.CombinedOutput()
			if c.dies == "" {
				require.NoError(t, err, "%s", out)
				return
			}
			require.Error(t, err)
			require.Contains(t, string(out), "verbstest: "+c.dies)
		})
	}
	t.Run("counters", func(t *testing.T) {
		root := Sysfs(t)
		cmd := exec.CommandContext(t.Context(), walk, "described")
		cmd.Env = Environ(t, Knobs{"SYSFS": root})
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for name, want := range map[string]string{"port_xmit_data": "25\n", "port_rcv_data": "25\n", "port_xmit_packets": "1\n",
			"link_downed": "0\n"} {
			b, err := os.ReadFile(filepath.Join(root, "double0", "ports", "1", "counters", name))
			require.NoError(t, err)
			require.Equal(t, want, string(b), name)
		}
	})
}

// TestWithout: functions that are left out are missing, and unknown functions cannot be left out.
func TestWithout(t *testing.T) {
	whole, less := Library(t), Library(t, "ibv_reg_dmabuf_mr", "_ibv_query_gid_table")
	require.NotEqual(t, whole, less)
	symbols := func(lib string) string {
		b, err := os.ReadFile(lib)
		require.NoError(t, err)
		return string(b)
	}
	for _, name := range []string{"ibv_reg_dmabuf_mr", "_ibv_query_gid_table"} {
		require.Contains(t, symbols(whole), "\x00"+name+"\x00")
		require.NotContains(t, symbols(less), "\x00"+name+"\x00")
	}
	require.Contains(t, symbols(less), "\x00ibv_reg_mr\x00")
}

// TestFails: a test that fails over the double fails here, and says why.
func TestFails(t *testing.T) {
	const fail = "UBCOLL_TEST_FAIL"
	if os.Getenv(fail) != "" {
		Over(t, nil, func(t *testing.T) { t.Error("as it should") })
		return
	}
	environ := append(Environ(t, nil), fail+"=1")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestFails$")
	cmd.Env = environ
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "over the double: exit status 1")
	require.Contains(t, string(out), "as it should")
}

// TestOver: a test runs over the double with its knobs.
func TestOver(t *testing.T) {
	Over(t, Knobs{"MEMLOCK": "77"}, func(t *testing.T) {
		require.Equal(t, "77", os.Getenv("VERBSTEST_MEMLOCK"))
	})
	for name, knobs := range map[string]Knobs{"with a name": {"ODP": "31"}, "(another)": nil} {
		t.Run(name, func(t *testing.T) {
			Over(t, knobs, func(t *testing.T) { require.Equal(t, knobs["ODP"], os.Getenv("VERBSTEST_ODP")) })
		})
	}
}
