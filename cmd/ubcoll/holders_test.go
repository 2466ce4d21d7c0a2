package main

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestHolders asks which ranks have the devices that a process sees.
func TestHolders(t *testing.T) {
	const a, b, ab = `"devices":[{"uuid":"a"}]`, `"devices":[{"uuid":"b"}]`, `"devices":[{"uuid":"a"},{"uuid":"b"}]`
	tell := func(host string, ranks int, sees, more string) []byte {
		text, err := json.Marshal(devicesOf{host, ranks, json.RawMessage("{" + sees + more + "}")})
		require.NoError(t, err)
		return text
	}
	const share = `,"share":true`
	for _, k := range []struct {
		name string
		all  [][]byte
		mine int
		want string // of each device, as info says it
		err  string
	}{
		{"one rank", [][]byte{tell("h", 1, ab, "")}, 0, "; rank 0's; no rank's", ""},
		{"two", [][]byte{tell("h", 1, ab, ""), tell("h", 1, ab, "")}, 1, "; rank 0's; rank 1's", ""},
		{"too many", [][]byte{tell("h", 3, ab, "")}, 0, "", "3 ranks and 2 CUDA devices"},
		{"goroutines share", [][]byte{tell("h", 5, ab, share)}, 0, "; shared by ranks 0,2,4; shared by ranks 1,3", ""},
		{"processes share", [][]byte{tell("h", 1, a, share), tell("h", 1, b, share), tell("h", 1, a, share)}, 2, "; shared by ranks 0,2", ""},
		{"two hosts", [][]byte{tell("h", 2, a, share), tell("g", 2, a, share)}, 1, "; shared by ranks 2-3", ""},
		{"the other host has too few", [][]byte{tell("h", 1, a, ""), tell("g", 2, a, "")}, 0, "; rank 0's", ""},
		{"nonsense", [][]byte{[]byte("x")}, 0, "", "what process 0 told"},
	} {
		t.Run(k.name, func(t *testing.T) {
			held, err := holdersOf(k.all, k.mine)
			if k.err != "" {
				require.ErrorContains(t, err, k.err)
				return
			}
			require.NoError(t, err)
			said := ""
			for _, ranks := range held {
				said += ofRanks(ranks)
			}
			require.Equal(t, k.want, said)
		})
	}
}

// TestInfoShared runs more ranks than there are devices: goroutines, and processes. Each device says whose it is.
func TestInfoShared(t *testing.T) {
	if p := cuda.Have(); p.Err != nil {
		t.Skip(p)
	}
	all, err := cuda.Devices()
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	n := len(all) + 1
	stdout, _, _ := testkit.Program(t, []string{"UBCOLL_CUDA=share"}, "info")
	require.NotContains(t, stdout, "rank 0")
	ranks := strconv.Itoa(n)
	for name, command := range map[string][]string{
		"goroutines": {"info"},
		"processes":  {"launch", "-np", ranks, "--", self, "info"},
	} {
		t.Run(name, func(t *testing.T) {
			for mode, want := range map[string]string{"share": "; shared by ranks " + ranges([]int{0, n - 1}) + "\n", "auto": ranks + " ranks and "} {
				stdout, stderr, code := testkit.Program(t, []string{"NTHREADS=" + ranks, "UBCOLL_CUDA=" + mode,
					"UBCOLL_EMULATE_DEVICES=" + os.Getenv("UBCOLL_EMULATE_DEVICES")}, command...)
				require.Equal(t, 0, code, stderr)
				require.Equal(t, 1, strings.Count(stdout, want), stdout)
			}
		})
	}
}

// info and doctor say when a GPU has multicast and this build has not.
func TestInfoMulticast(t *testing.T) {
	emulated.Only(t)
	built := cuda.HaveMulticast().Err == nil // the tests have tag nvls
	info := "this GPU has multicast, this build has not\n"
	if built {
		info = "this GPU and this build have multicast, which operations use (NVLS)\n"
	}
	for _, x := range []struct {
		name, has    string
		info, doctor int // how often that is said
	}{{"with", "1", 2, 1}, {"without", "0", 0, 0}} {
		t.Run(x.name, func(t *testing.T) {
			vars := []string{"UBCOLL_CUDA=auto", "UBCOLL_EMULATE_DEVICES=2", "UBCOLL_EMULATE_MULTICAST=" + x.has}
			stdout, stderr, code := testkit.Program(t, vars, "info")
			require.Equal(t, 0, code, stderr)
			require.Equal(t, 2, strings.Count(stdout, "Emulated GPU"), stdout)
			require.Equal(t, x.info, strings.Count(stdout, info), stdout)
			require.Equal(t, x.info, strings.Count(stdout, "this GPU"), stdout)
			if built {
				x.doctor = 0
			}
			stdout, _, _ = testkit.Program(t, vars, "doctor")
			require.Contains(t, stdout, "2 GPUs, each with access to all others")
			require.Equal(t, x.doctor, strings.Count(stdout, "these GPUs have multicast, this build has not"), stdout)
		})
	}
}
