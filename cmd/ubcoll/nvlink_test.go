//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// info and doctor say that GPUs of two hosts are in one NVLink fabric. The GPUs are emulated, the library that knows the fabric
// is a fake, and the hosts are identities of this one: no machine of the project has such a fabric.
func TestNVLinkBetweenHosts(t *testing.T) {
	emulated.Only(t)
	dir := t.TempDir()
	out, err := exec.Command(testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang"), "-std=c11", "-shared", "-fPIC", "-o",
		filepath.Join(dir, "libnvidia-ml.so.1"), "../../hw/nvml/testdata/fake.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	self, err := os.Executable()
	require.NoError(t, err)
	vars := []string{"LD_LIBRARY_PATH=" + dir + ":" + os.Getenv("LD_LIBRARY_PATH"), "UBCOLL_CUDA=auto", "UBCOLL_EMULATE_DEVICES=2"}
	const fabric = "1a1a1a1a-1a1a-1a1a-1a1a-1a1a1a1a1a1a, clique 0"
	host, err := os.Hostname()
	require.NoError(t, err)
	shared := "fabric " + fabric + ": GPUs of hosts " + host + " and " + host + " share it; ubcoll does not use it between hosts\n"
	for _, k := range []struct {
		name, says, id string
		shared         int
	}{
		{"shared", "3 0 0 1a", "h$UBCOLL_RANK", 1},
		{"two cliques", "3 0 $UBCOLL_RANK 1a", "h$UBCOLL_RANK", 0},
		{"one host", "3 0 0 1a", "h", 0},
		{"no fabric", "0 0 0 0", "h$UBCOLL_RANK", 0},
	} {
		t.Run(k.name, func(t *testing.T) {
			for _, command := range []string{"info", "doctor"} {
				stdout, stderr, _ := testkit.Program(t, vars, "launch", "-np", "2", "--", "sh", "-c",
					"UBCOLL_HOSTID="+k.id+" UBCOLL_TEST_NVML=\""+k.says+"\" exec "+self+" "+command)
				require.Contains(t, stdout, "GPU", stderr)
				require.Equal(t, k.shared, strings.Count(stdout, shared), stdout)
				require.Equal(t, k.shared, strings.Count(stdout, "does not use it between hosts"), stdout)
				if command == "info" {
					require.Equal(t, strings.HasPrefix(k.says, "3"), strings.Contains(stdout, ", NVLink fabric (1a1a1a1a-"), stdout)
				}
			}
		})
	}
}
