//go:build !nvls

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// A build without multicast refuses -nvls on and the keys nvls, whatever the machine has, and measures nothing.
func TestNVLSWithout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "on.toml")
	require.NoError(t, os.WriteFile(file, []byte("[run]\nnvls = 'on'\n"), 0o644))
	for _, args := range [][]string{{"bench", "all_reduce", "-nvls", "on"}, {"verify", "-nvls", "on"}, {"run", file, "-o", t.TempDir()}} {
		stdout, stderr, code := testkit.Program(t, nil, args...)
		require.Equal(t, exitSupport, code, stderr)
		require.Empty(t, stdout)
		require.Regexp(t, args[0]+": -nvls on: (this build has no multicast .make build NVLS=1, or -tags nvls|CUDA in a build for)", stderr)
	}
	for _, c := range []struct{ environ, args []string }{
		{nil, []string{"-nvls", "off"}},
		{[]string{"UBCOLL_NVLS=off"}, nil}, // counts more than the file
	} {
		_, stderr, code := testkit.Program(t, c.environ, append([]string{"run", file, "-quick", "-operation", "barrier", "-o", t.TempDir()}, c.args...)...)
		require.Zero(t, code, stderr)
	}
	stdout, stderr, code := testkit.Program(t, nil, "bench", "barrier", "-nvls", "off", "-n", "2")
	require.Zero(t, code, stderr)
	require.NotContains(t, stdout, "NVLS")
}
