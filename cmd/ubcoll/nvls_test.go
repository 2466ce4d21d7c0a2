//go:build nvls

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// What is measured and verified with multicast says so. Programs run over the emulated driver, as this process does.
func TestMulticastFlag(t *testing.T) {
	emulated.NVLS(t)
	environ := []string{env.NVLS.Name + "=", "UBCOLL_CUDA=auto", "UBCOLL_EMULATE_MULTICAST=1"} // the flag alone permits it
	stdout, stderr, code := testkit.Program(t, environ, "info")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "Emulated GPU")
	require.Contains(t, stdout, "this GPU and this build have multicast")

	stdout, stderr, code = testkit.Program(t, environ, "verify", "all_reduce", "-nvls", "on", "-device", "cuda", "-t", "2", "-e", "1K", "-d", "int8")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr, "no warning")
	require.Contains(t, stdout, "verify: 2 ranks on CUDA devices, NVLS on: ")
	file := filepath.Join(t.TempDir(), "x.json")
	stdout, stderr, code = testkit.Program(t, environ, "bench", "all_reduce", "-nvls", "on", "-device", "cuda", "-t", "2", "-b", "1K",
		"-e", "1K", "-n", "1", "-w", "0", "-J", file)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "# NVLS: on\n")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), `"nvls": "on"`)
}
