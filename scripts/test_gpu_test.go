//go:build linux

package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestTestGPU runs scripts/test-gpu over stand-ins for go, nvidia-smi and the programs of tests.
func TestTestGPU(t *testing.T) {
	script, err := os.ReadFile("test-gpu")
	require.NoError(t, err)
	guard, err := os.ReadFile("no-multicast")
	require.NoError(t, err)
	const (
		passes = `[ "$UBCOLL_REQUIRE" = cuda ] || exit 3
echo "=== RUN   TestA
=== RUN   TestA/two
    gputest.go:66: 1 devices, and 2 wanted
--- SKIP: TestA (0.00s)
    --- SKIP: TestA/two (0.00s)
=== RUN   TestB
    b_test.go:1: not for want of devices
--- SKIP: TestB (0.00s)
PASS"
`
		fails = "echo '=== RUN   TestC'; echo '--- FAIL: TestC (0.00s)'; echo FAIL; exit 1\n"
		// builds makes the program of a package, whose name is the last argument.
		builds = `while [ $# -gt 1 ]; do [ "$1" != -o ] || to=$2; shift; done
printf '#!/bin/sh\necho "=== RUN   Test"; echo "    x_test.go:1: 1 devices, and 4 wanted"' >"$to"; chmod +x "$to"
`
	)
	for _, k := range []struct {
		name     string
		programs map[string]string // stand-ins in PATH, beside nvidia-smi; of tests, if the name ends in .test
		args     []string
		code     int
		says     []string // parts of the output, in order
	}{
		{"without go", map[string]string{"a.test": passes, "b+c.test": passes}, nil, 0,
			[]string{"ok    ./a, ", "ok    ./b/c, ", "Left out, ", "    ./a TestA/two: 2 GPUs\n", "    ./b/c TestA/two: 2 GPUs\n",
				"test-gpu: GPUs: 1; failed: none; left out: 2 tests\n"}},
		{"one fails", map[string]string{"a.test": fails, "b+c.test": passes}, nil, 1,
			[]string{"FAIL  ./a, ", "--- FAIL: TestC", "ok    ./b/c, ", "failed: ./a; left out: 1 tests\n"}},
		{"one is not there", map[string]string{"b+c.test": passes}, nil, 0, []string{"----  ./a: no build/gpu/tests/a.test", "ok    ./b/c, "}},
		{"one package", map[string]string{"a.test": fails, "b+c.test": passes}, []string{"-run", "TestA", "./b/c"}, 0,
			[]string{"ok    ./b/c, ", "left out: 1 tests\n"}},
		{"nothing to run", nil, nil, 5, []string{"there is neither go nor a test"}},
		{"with go", map[string]string{"go": builds}, nil, 0,
			[]string{"ok    ./a, ", "ok    ./b/c, ", "    ./a Test: 4 GPUs\n", "left out: 2 tests\n"}},
		{"built for elsewhere", map[string]string{"go": builds, "nvidia-smi": "exit 9\n"}, []string{"-c"}, 0, nil},
		{"no GPU", map[string]string{"a.test": passes, "nvidia-smi": "exit 9\n"}, nil, 5, []string{"nvidia-smi lists no GPU"}},
		{"one with multicast", map[string]string{"a.test": passes + "# cu" + "MulticastCreate\n", "b+c.test": passes}, nil, 1,
			[]string{"no-multicast: built with tag nvls, and not run here: /", "/a.test\n", "ok    ./b/c, ", "failed: ./a; left out: 1 tests\n"}},
		{"built with multicast", map[string]string{"go": builds + `echo "# cu""MulticastCreate" >>"$to"` + "\n"}, []string{"-c"}, 1,
			[]string{"no-multicast: built with tag nvls"}},
		{"unknown flag", nil, []string{"-x"}, 6, []string{"test-gpu: the tests of all packages"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			root := t.TempDir()
			bin := filepath.Join(root, "path")
			for _, dir := range []string{"scripts", "path", "build/gpu/tests", "a", "b/c", "d"} {
				require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
			}
			for _, tool := range []string{"awk", "bash", "chmod", "dirname", "grep", "mkdir", "sed", "sh", "sort", "tail", "wc", "xargs"} {
				at, err := exec.LookPath(tool)
				require.NoError(t, err)
				require.NoError(t, os.Symlink(at, filepath.Join(bin, tool)))
			}
			for file, text := range map[string]string{"a/a_test.go": `	"github.com/ubcoll/ubcoll/hw/cuda"`, "d/d_test.go": "package d",
				"b/c/c_test.go": `	"github.com/ubcoll/ubcoll/internal/testkit/gputest"`} {
				require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text+"\n"), 0o644))
			}
			testkit.WriteProgram(t, filepath.Join(root, "scripts/test-gpu"), string(script))
			testkit.WriteProgram(t, filepath.Join(root, "scripts/no-multicast"), string(guard))
			programs := map[string]string{"nvidia-smi": "echo 'GPU 0: X (UUID: GPU-1)'\n"}
			for name, text := range k.programs {
				programs[name] = text
			}
			for name, text := range programs {
				dir := bin
				if strings.HasSuffix(name, ".test") {
					dir = filepath.Join(root, "build/gpu/tests")
				}
				testkit.WriteProgram(t, filepath.Join(dir, name), "#!/bin/sh\n"+text)
			}
			cmd := exec.Command(filepath.Join(bin, "bash"), append([]string{filepath.Join(root, "scripts/test-gpu")}, k.args...)...)
			cmd.Env = []string{"PATH=" + bin}
			out, code := outcome(t, cmd)
			require.Equal(t, k.code, code, "%s", out)
			rest := out
			for _, want := range k.says {
				_, after, found := strings.Cut(rest, want)
				require.True(t, found, "%q in %s", want, out)
				rest = after
			}
			require.NotContains(t, out, "TestB")
			require.NotContains(t, out, "./d")
		})
	}
}

// outcome runs cmd and returns its output and exit code.
func outcome(t *testing.T, cmd *exec.Cmd) (string, int) {
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(out), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(out), 0
}
