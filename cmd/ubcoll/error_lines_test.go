package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/sweep"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// What the tool says of errors, of one process and of several ranks, says nothing twice; the root package has the
// table of the library's own errors.
func TestErrorsAreSaidOnce(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	launch := func(words ...string) []string { return append([]string{"launch", "-np", "3", "--", self}, words...) }
	small := []string{"-b", "64", "-e", "64", "-n", "2"}
	for _, k := range []struct {
		name   string
		env    []string
		args   []string
		stderr string // a regular expression
	}{
		{"no such command", nil, []string{"benhc"}, `unknown command "benhc": did you mean bench\?`},
		{"no such operation", nil, []string{"bench", "all_redcue"}, `all_redcue`},
		{"no such file", nil, []string{"run", "missing.toml"}, `missing\.toml`},
		{"root", []string{"NTHREADS=2"}, append([]string{"bench", "reduce", "-r", "5"}, small...), `root 5 of 2 ranks`},
		{"launch: root", nil, launch(append([]string{"bench", "reduce", "-r", "5"}, small...)...),
			`(?m)^ubcoll: .*rank 0 .*root 5 of 3 ranks.* \(and 2 more ranks\)$`},
		{"launch: devices", []string{"UBCOLL_CUDA=off"}, launch(append([]string{"bench", "all_reduce", "-device", "cuda"}, small...)...),
			`(?m)^ubcoll: .*rank 0 .*not supported \(and 2 more ranks\)$`},
		{"launch: algorithm", []string{"UBCOLL_ALGO=rign"}, launch(append([]string{"bench", "all_reduce"}, small...)...),
			`(?m)^ubcoll: open: rank 0 \(host \S+\): UBCOLL_ALGO="rign".*: invalid argument \(and 2 more ranks\)$`},
		{"launch: no such program", nil, []string{"launch", "-np", "2", "--", "./missing"}, `did not start`},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, stderr, code := testkit.Program(t, k.env, k.args...)
			require.NotZero(t, code, stderr)
			require.Regexp(t, k.stderr, stderr)
			lines := map[string]bool{}
			for line := range strings.Lines(stderr) {
				require.Empty(t, testkit.CheckErrorText(line), "%s", stderr)
				line = regexp.MustCompile(`rank \d+`).ReplaceAllString(line, "")
				require.False(t, lines[line], "a line is there twice: %s", stderr)
				lines[line] = true
			}
		})
	}
}

// After an interrupt, the last line says how far the run is.
func TestRunInterrupted(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	file := sweepFile(t, "[sweep]\noperation = [\"all_reduce\"]\nbytes = [8]\nranks = [2]\n[run]\nrepeats = 1000\niterations = 10\n")
	for name, words := range map[string][]string{"goroutine ranks": nil, "launch": {"launch", "-np", "2", "--", self}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "r")
			cmd := testkit.Command(t, nil, append(words, "run", file, "-o", dir)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			require.NoError(t, cmd.Start())
			testkit.Eventually(t, func() bool {
				b, _ := os.ReadFile(filepath.Join(dir, sweep.PointsFile))
				return bytes.Count(b, []byte("\n")) > 2
			})
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
			require.Error(t, cmd.Wait())
			require.Equal(t, 130, cmd.ProcessState.ExitCode(), &stderr)
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			require.Regexp(t, fmt.Sprintf(`^\d+ of 1000 measurements are in %s: the same command goes on$`, regexp.QuoteMeta(dir)),
				lines[len(lines)-1], &stderr)
			require.Equal(t, 1, strings.Count(stderr.String(), "signal: interrupt"), "%s", &stderr)
		})
	}
}
