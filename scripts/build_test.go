//go:build linux

package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestBuild runs scripts/build over a stand-in for go: only NVLS=1 builds with tag nvls.
func TestBuild(t *testing.T) {
	script, err := os.ReadFile("build")
	require.NoError(t, err)
	for _, x := range []struct {
		name string
		env  []string
		code int
		want string
	}{
		{"plain", []string{"MPI=0"}, 0, "build: bin/ without MPI\ngo build -tags  -o bin/ ./cmd/... ./tools/benchstats\n"},
		{"with multicast", []string{"MPI=0", "NVLS=1"}, 0,
			"build: bin/ without MPI, tag nvls\ngo build -tags nvls -o bin/ ./cmd/... ./tools/benchstats\n"},
		{"without it", []string{"MPI=0", "NVLS=0"}, 0, "build: bin/ without MPI\ngo build -tags  -o bin/ ./cmd/... ./tools/benchstats\n"},
		{"with MPI", []string{"MPI=1"}, 0, "build: bin/ with An MPI (cc)\ngo build -tags mpi -o bin/ ./cmd/... ./tools/benchstats\n"},
		{"with MPI and multicast", []string{"MPI=1", "NVLS=1"}, 0,
			"build: bin/ with An MPI (cc), tag nvls\ngo build -tags mpi,nvls -o bin/ ./cmd/... ./tools/benchstats\n"},
		{"neither yes nor no", []string{"MPI=0", "NVLS=on"}, 2, "build: NVLS=on: want 1 or 0\n"},
	} {
		t.Run(x.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "scripts"), 0o755))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "path"), 0o755))
			for name, text := range map[string]string{"scripts/build": string(script), "path/go": "#!/bin/sh\necho \"go $*\"\n",
				"scripts/mpienv": "#!/bin/sh\necho \"MPICC='cc' MPI_NAME='An MPI'\"\n"} {
				testkit.WriteProgram(t, filepath.Join(dir, name), text)
			}
			cmd := exec.Command(filepath.Join(dir, "scripts/build"))
			cmd.Env = append([]string{"PATH=" + filepath.Join(dir, "path") + ":" + os.Getenv("PATH")}, x.env...)
			out, code := outcome(t, cmd)
			require.Equal(t, x.code, code, "%s", out)
			require.Equal(t, x.want, out)
		})
	}
}
