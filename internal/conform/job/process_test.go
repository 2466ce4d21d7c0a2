package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// program is the job program, built once, when a test first asks for it.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ubcoll-conform-")
	if err != nil {
		return "", err
	}
	programDir = dir
	bin := filepath.Join(dir, "job")
	args := []string{"build", "-o", bin}
	if race.Enabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

var programDir string // where program has built, if a test has asked

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// script is a program of these lines of shell, which can start the job program in some way of their own.
func script(t *testing.T, format string, args ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job")
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+fmt.Sprintf(format, args...)+"\n"), 0o700))
	return file
}

// job is a job of real processes that have nothing but their environment.
type job struct {
	cmds   []*exec.Cmd
	output []*bytes.Buffer
}

func start(t *testing.T, n int, extra []string, args ...string) *job {
	t.Helper()
	return startEach(t, n, each(extra...), args...)
}

// each is the same variables more for every rank.
func each(extra ...string) func(rank int) []string { return func(int) []string { return extra } }

func startEach(t *testing.T, n int, extra func(rank int) []string, args ...string) *job {
	t.Helper()
	bin, err := program()
	require.NoError(t, err)
	return startProgram(t, bin, n, extra, args...)
}

func startProgram(t *testing.T, bin string, n int, extra func(rank int) []string, args ...string) *job {
	t.Helper()
	var id [16]byte
	rand.Read(id[:])
	name := hex.EncodeToString(id[:])
	j := &job{}
	for r := 0; r < n; r++ {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(append(os.Environ(), bootstrap.EnvVars(r, n, "unix:@"+name[:12], name)...), extra(r)...)
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		j.cmds, j.output = append(j.cmds, cmd), append(j.output, out)
	}
	t.Cleanup(func() {
		for _, c := range j.cmds {
			c.Process.Kill()
		}
	})
	return j
}

// wait waits for all processes, and kills them when that takes too long.
func (j *job) wait() []error {
	timer := time.AfterFunc(4*testkit.Limit, func() {
		for _, c := range j.cmds {
			c.Process.Kill()
		}
	})
	defer timer.Stop()
	errs := make([]error, len(j.cmds))
	for r, c := range j.cmds {
		errs[r] = c.Wait()
	}
	return errs
}

// said is what a process has written.
func (j *job) said(process int) string { return j.output[process].String() }

// kill kills a rank, which is a process of its own, some time after all have said in dir that they are inside.
func (j *job) kill(t *testing.T, dir string, victim int, after time.Duration) (killed time.Time) {
	t.Helper()
	awaitReady(t, dir, len(j.cmds), j.said)
	time.Sleep(after)
	require.NoError(t, j.cmds[victim].Process.Kill())
	return time.Now()
}

// succeed waits for all processes, which exit with 0.
func (j *job) succeed(t *testing.T) {
	t.Helper()
	for r, err := range j.wait() {
		if err != nil {
			t.Errorf("process %d: %v: %s", r, err, j.output[r])
		}
	}
	t.Log(j.output[0])
}

func TestProcesses(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 8}
	suites := []string{"matrix", "random", "moves", "bad", "order", "imports", "p2p", "programs", "mixed", "exit-early"}
	if testing.Short() || race.Enabled {
		sizes, suites = []int{3}, []string{"random", "moves", "bad", "order", "p2p", "programs", "mixed", "exit-early"}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			start(t, n, nil, suites...).succeed(t)
		})
	}
}

// However many communicators there are, a rank holds one descriptor of each peer's process.
func TestDescriptors(t *testing.T) {
	start(t, 3, nil, "descriptors").succeed(t)
}

// leftovers is what a job whose temporary files go to tmp has left behind, there and in /dev/shm.
func leftovers(t *testing.T, tmp string) (left []string) {
	t.Helper()
	for _, dir := range []string{"/dev/shm", tmp} {
		es, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range es {
			if dir == tmp || strings.Contains(e.Name(), "ubcoll") {
				left = append(left, filepath.Join(dir, e.Name()))
			}
		}
	}
	return left
}

// TestKill kills a random rank at a random moment, again and again: every survivor must say which one, long before its
// own time is up, and nothing may be left behind. How soon they say so, two seconds by the documentation, is logged.
func TestKill(t *testing.T) {
	rounds := 50
	if testing.Short() || race.Enabled {
		rounds = 5
	}
	pick := mrand.New(mrand.NewPCG(testkit.Seed(t), 0))
	killRounds(t, "kill", rounds, func() int { return 2 + pick.IntN(3) }, pick)
}

// TestKillMany is TestKill with so many ranks that they agree by group: the victim may lead one, or not.
func TestKillMany(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("takes long")
	}
	pick := mrand.New(mrand.NewPCG(testkit.Seed(t), 0))
	killRounds(t, "kill", 5, func() int { return 17 + pick.IntN(8) }, pick)
}

// killRounds does rounds side by side, as many as go test allows: survivors spend most of the time waiting before they
// end. Who is killed, and when, is drawn beforehand, so that a seed repeats it.
func killRounds(t *testing.T, suite string, rounds int, ranks func() int, pick *mrand.Rand) {
	for k := range rounds {
		n, own := ranks(), mrand.New(mrand.NewPCG(pick.Uint64(), 0))
		t.Run(fmt.Sprintf("%d/ranks=%d", k, n), func(t *testing.T) {
			t.Parallel()
			killOne(t, suite, n, own)
		})
	}
}

func killOne(t *testing.T, suite string, n int, pick *mrand.Rand) {
	dir, tmp := t.TempDir(), t.TempDir()
	j := start(t, n, []string{conform.DirVar + "=" + dir, "TMPDIR=" + tmp}, suite)
	after, victim := time.Duration(pick.IntN(100_000))*time.Microsecond, pick.IntN(n)
	killed := j.kill(t, dir, victim, after)
	j.wait()
	checkReports(t, dir, n, victim, killed, j.said)
	require.Empty(t, leftovers(t, tmp))
}

// awaitReady waits until all ranks have said in dir that they are inside.
func awaitReady(t *testing.T, dir string, ranks int, output func(rank int) string) {
	t.Helper()
	for r := range ranks {
		ready := endings.ReadyFile(dir, r)
		if !testkit.Until(func() bool { _, err := os.Stat(ready); return err == nil }) {
			t.Fatalf("rank %d is not inside after %v: %s", r, testkit.Limit, output(r))
		}
	}
}

// checkReports looks at what the survivors of a rank report: that one, as lost.
func checkReports(t *testing.T, dir string, n, victim int, killed time.Time, output func(int) string) {
	t.Helper()
	for r := 0; r < n; r++ {
		if r == victim {
			continue
		}
		report, err := endings.ReadReport(dir, r)
		require.NoError(t, err, "rank %d wrote no report: %s", r, output(r))
		require.Equal(t, victim, report.About, report.Text)
		require.True(t, report.Lost, report.Text)
		t.Logf("rank %d: after %v", r, report.At.Sub(killed))
	}
}
