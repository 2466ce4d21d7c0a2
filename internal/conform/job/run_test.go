package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
)

// runCase is a job that calls Run, and what its processes should return.
type runCase struct {
	name, suite string
	processes   int
	extra       []string
	codes       []int // sorted
	text        string
}

// failures are cases for TestRun and TestMPIRun. Most of them fail on rank 1.
var failures = []runCase{
	{"succeeds", "order", 3, nil, []int{0, 0, 0}, ""},
	{"fails", "ends-error", 3, nil, []int{1, 3, 3}, "no luck"},
	{"fails first", "ends-first", 3, nil, []int{1, 3, 3}, "no luck"},
	{"panics", "ends-panic", 3, nil, []int{2, 3, 3}, "panic: on purpose"},
	{"several ranks succeed", "order", 2, []string{"UBCOLL_RANKS_PER_PROCESS=2"}, []int{0, 0}, ""},
	{"one of several ranks fails", "ends-error", 2, []string{"UBCOLL_RANKS_PER_PROCESS=2"}, []int{1, 3}, "no luck"},
	{"bad variable", "order", 2, []string{"UBCOLL_RANKS_PER_PROCESS=many"}, []int{6, 6}, "want a whole number"},
}

// environ returns the variables for the job's processes.
func (k *runCase) environ(dir string) []string {
	return append(slices.Clone(k.extra), conform.DirVar+"="+dir, fmt.Sprintf("%s=%d", runVar, k.processes))
}

// check checks what the processes have reported: the one that failed says why, all others name it, and nothing is left
// behind.
func (k *runCase) check(t *testing.T, dir string) {
	t.Helper()
	files := endings.RunFiles(dir)
	require.Len(t, files, k.processes)
	var codes []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		var r outcome
		require.NoError(t, json.Unmarshal(b, &r))
		codes = append(codes, r.Code)
		require.Empty(t, r.Left, "%s", r.Text)
		if r.Code == 0 {
			continue
		}
		require.Contains(t, r.Text, k.text)
		if r.Code == 3 {
			require.True(t, r.Aborted, "%s", r.Text)
			require.Equal(t, 1, r.Peer, "%s", r.Text)
			require.NotContains(t, r.Text, "goroutine ", "another rank's stack")
		} else if r.Code == 2 {
			require.Equal(t, 1, strings.Count(r.Text, "EndsPanic("), "its stack, once: %s", r.Text)
		}
	}
	slices.Sort(codes)
	require.Equal(t, k.codes, codes)
}

// Run returns each process its ranks' error, and prints nothing.
func TestRun(t *testing.T) {
	cases := append(slices.Clone(failures),
		runCase{"goroutines succeed", "order", 1, alone, []int{0}, ""},
		runCase{"a goroutine fails", "ends-error", 1, alone, []int{1}, "rank 1: ends-error: no luck"},
		runCase{"a goroutine panics", "ends-panic", 1, alone, []int{2}, "panic: on purpose"},
		runCase{"no such rank", "order", 1, []string{"UBCOLL_RANK=1"}, []int{6}, "UBCOLL_RANK=1 does not fit UBCOLL_SIZE=1"})
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			j := start(t, k.processes, k.environ(dir), k.suite)
			for r, err := range j.wait() {
				require.NotNil(t, j.cmds[r].ProcessState)
				require.Equal(t, k.codes[len(k.codes)-1] == 0, err == nil)
				for line := range strings.Lines(j.said(r)) {
					require.Contains(t, line, "ok "+k.suite, "somebody has said something")
				}
			}
			k.check(t, dir)
		})
	}
}

// A process that fails before it opens a communicator tells those that wait for it.
func TestRunFailsEarly(t *testing.T) {
	k := runCase{"", "order", 3, nil, []int{3, 3, 6}, ""}
	dir := t.TempDir()
	startEach(t, k.processes, func(rank int) []string {
		if rank == 1 {
			return append(k.environ(dir), "UBCOLL_RANKS_PER_PROCESS=many")
		}
		return k.environ(dir)
	}, k.suite).wait()
	k.check(t, dir)
}

// Without MPI, Run may be called again.
func TestRunAgain(t *testing.T) {
	k := runCase{"", "order", 1, append([]string{"CONFORM_AGAIN=1"}, alone...), []int{0}, ""}
	dir := t.TempDir()
	start(t, 1, k.environ(dir), k.suite).succeed(t)
	k.check(t, dir)
	require.Equal(t, "<nil>", again(t, dir))
}

func again(t *testing.T, dir string) string {
	t.Helper()
	files := endings.RunFiles(dir)
	require.NotEmpty(t, files)
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var r outcome
	require.NoError(t, json.Unmarshal(b, &r))
	return r.Again
}

// A signal has the same effect on a program that calls Run as on any other.
func TestRunSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		dir := t.TempDir()
		k := runCase{"", "ends-ignore", 1, alone, nil, ""}
		j := start(t, 1, k.environ(dir), k.suite)
		awaitReady(t, dir, 3, j.said)
		require.NoError(t, j.cmds[0].Process.Signal(sig))
		j.wait()
		status := j.cmds[0].ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, status.Signaled(), "%v: %s", j.cmds[0].ProcessState, j.said(0))
		require.Equal(t, sig, status.Signal())
		require.Empty(t, j.said(0))
	}
}

// Failures under an MPI; the launcher ends the job.
func TestMPIRun(t *testing.T) {
	for _, k := range failures {
		t.Run(k.name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := mpiJob(t, k.processes, k.suite)
			cmd.Env = append(os.Environ(), k.environ(dir)...)
			out, err := cmd.CombinedOutput()
			require.Equal(t, k.codes[len(k.codes)-1] == 0, err == nil, "%s", out)
			require.NotContains(t, string(out), "ubcoll: ", "what Main says")
			k.check(t, dir)
		})
	}
}

// After MPI has run, it does not run again.
func TestMPIRunAgain(t *testing.T) {
	k := runCase{"", "order", 2, []string{"CONFORM_AGAIN=1"}, []int{0, 0}, ""}
	dir := t.TempDir()
	cmd := mpiJob(t, k.processes, k.suite)
	cmd.Env = append(os.Environ(), k.environ(dir)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	k.check(t, dir)
	require.Contains(t, again(t, dir), "MPI cannot start twice in one process")
}
