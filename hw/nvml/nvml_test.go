//go:build linux && cgo && (amd64 || arm64)

package nvml_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/nvml"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestABI compares driver.h with NVIDIA's header, if a toolkit is installed.
func TestABI(t *testing.T) {
	for _, home := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda", "/usr"} {
		include := filepath.Join(home, "include")
		if _, err := os.Stat(filepath.Join(include, "nvml.h")); home == "" || err != nil {
			continue
		}
		cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
		out, err := exec.Command(cc, "-std=c11", "-fsyntax-only", "-I", include, "testdata/abi.c").CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("compared with %s", include)
		return
	}
	t.Skip("no nvml.h")
}

// The fabrics are those of a fake, since no machine of the project has such a fabric.
func TestFabricOf(t *testing.T) {
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	const pci = "0000:1b:00.0"
	const fabric = "1a1a1a1a-1a1a-1a1a-1a1a-1a1a1a1a1a1a, clique 7"
	for name, flag := range map[string]string{"nvmlDeviceGetGpuFabricInfoV": "-DNEW", "nvmlDeviceGetGpuFabricInfo": "-DOLD"} {
		lib := filepath.Join(t.TempDir(), "libfake.so")
		out, err := exec.Command(cc, "-std=c11", "-Wall", "-shared", "-fPIC", flag, "-o", lib, "testdata/fake.c").CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, k := range []struct{ name, says, fails, pci, want string }{
			{"joined", "3 0 7 1a", "", pci, fabric},
			{"within a host", "3 0 7 0", "", pci, ""},
			{"not done", "2 0 7 1a", "", pci, ""},
			{"not supported", "0 0 7 1a", "", pci, ""},
			{"failed", "3 999 7 1a", "", pci, ""},
			{"no such GPU", "3 0 7 1a", "", "x", ""},
			{"no start", "3 0 7 1a", "nvmlInit_v2", pci, ""},
			{"no handle", "3 0 7 1a", "nvmlDeviceGetHandleByPciBusId_v2", pci, ""},
			{"no answer", "3 0 7 1a", name, pci, ""},
		} {
			t.Run(name+"/"+k.name, func(t *testing.T) {
				t.Setenv("UBCOLL_TEST_NVML", k.says)
				t.Setenv("UBCOLL_TEST_NVML_FAILS", k.fails)
				f, ok := nvml.Load(lib)(k.pci)
				require.Equal(t, k.want != "", ok)
				if ok {
					require.Equal(t, k.want, f.String())
				}
			})
		}
	}
	for _, lib := range []string{"/no/such", "libm.so.6"} {
		_, ok := nvml.Load(lib)(pci)
		require.False(t, ok)
	}
	_, ok := nvml.FabricOf("") // of this machine's library, if there is one
	require.False(t, ok)
}
