//go:build linux

package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestVerifyGPU runs scripts/verify-gpu over stand-ins for nvidia-smi, which lists two GPUs, an MPI and ubcoll.
func TestVerifyGPU(t *testing.T) {
	for _, k := range []struct {
		name string
		args []string
		log  string // how ubcoll was started
		code int
		says string
	}{
		{"as many ranks as GPUs, and more", []string{"-np", "2,3", "-e", "1M", "-seed", "7"}, `
mpirun 2: verify -device cuda -e 1M -seed 7
ring mpirun 2: verify -device cuda -e 1M -seed 7 all_reduce
verify -t 3 -devices share -device cuda -e 1M -seed 7
ring verify -t 3 -devices share -device cuda -e 1M -seed 7 all_reduce
`, 0, "verify-gpu: right with a GPU each: 2; right sharing 2: 3; wrong: none; 0 s\n"},
		{"operations", []string{"-np", "4", "broadcast", "reduce"}, `
verify -t 4 -devices share -device cuda -e 40M -seed 1 broadcast reduce
`, 0, "verify-gpu: right with a GPU each: none; right sharing 2: 4; wrong: none; 0 s\n"},
		{"wrong", []string{"-np", "3,2", "bad"}, `
verify -t 3 -devices share -device cuda -e 40M -seed 1 bad
mpirun 2: verify -device cuda -e 40M -seed 1 bad
`, 1, `verify-gpu: 3 ranks: exit code 1 (124: longer than 120 s, which LIMIT sets)
verify-gpu: 2 ranks: exit code 1 (124: longer than 120 s, which LIMIT sets)
verify-gpu: right with a GPU each: none; right sharing 2: none; wrong: 3 2; 0 s
`},
	} {
		t.Run(k.name, func(t *testing.T) {
			root := t.TempDir()
			bin := filepath.Join(root, "path")
			for _, dir := range []string{"scripts", "path", "bin"} {
				require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
			}
			for _, tool := range []string{"bash", "basename", "cat", "dirname", "grep", "id", "mkdir", "sed", "sh", "timeout", "tr"} {
				at, err := exec.LookPath(tool)
				require.NoError(t, err)
				require.NoError(t, os.Symlink(at, filepath.Join(bin, tool)))
			}
			for _, script := range []string{"gpuenv", "mpienv", "no-multicast", "verify-gpu"} {
				text, err := os.ReadFile(script)
				require.NoError(t, err)
				testkit.WriteProgram(t, filepath.Join(root, "scripts", script), string(text))
			}
			log := filepath.Join(root, "log")
			for name, text := range map[string]string{
				"path/nvidia-smi": "echo 'GPU 0: X (UUID: GPU-1)'; echo 'GPU 1: X (UUID: GPU-2)'",
				"path/mpicc":      `[ "$1" != --showme:version ] || echo Open MPI`,
				"path/mpirun":     `[ "$1" != --version ] || { echo Open MPI; exit; }; export BY="mpirun $4: "; shift 4; exec "$@"`,
				"bin/ubcoll": `echo "${UBCOLL_ALGO:+$UBCOLL_ALGO }$BY$*" >>"$LOG"
case $* in *bad*) exit 1 ;; esac`,
			} {
				testkit.WriteProgram(t, filepath.Join(root, name), "#!/bin/sh\n"+text+"\n")
			}
			cmd := exec.Command(filepath.Join(bin, "bash"), append([]string{filepath.Join(root, "scripts/verify-gpu")}, k.args...)...)
			cmd.Env = []string{"PATH=" + bin, "LOG=" + log, "MPICC=" + filepath.Join(bin, "mpicc")}
			out, code := outcome(t, cmd)
			require.Equal(t, k.code, code, "%s", out)
			require.Equal(t, k.says, regexp.MustCompile(`\d+ s\n$`).ReplaceAllString(out, "0 s\n"))
			started, err := os.ReadFile(log)
			require.NoError(t, err)
			require.Equal(t, k.log, "\n"+string(started))
		})
	}
}
