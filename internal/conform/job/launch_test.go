package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// programVar names a job program that was built elsewhere, for machines without Go.
const programVar = "CONFORM_PROGRAM"

// program returns the job program. Daily runs do without: building it takes as long as many tests, and the tests of
// ubcoll launch and of package bootstrap start processes, too. With the race detector tests take turns (testkit.Turn).
func program(t *testing.T) string {
	t.Helper()
	if race.Enabled { // it does not see what processes share
		testkit.NameTurn(t, 3)
	}
	return always(t)
}

// always is program without turns.
func always(t *testing.T) string {
	t.Helper()
	testkit.LongOrRace(t)
	if bin := os.Getenv(programVar); bin != "" {
		return bin
	}
	bin, err := built()
	require.NoError(t, err)
	return bin
}

// built builds the job program, once.
var built = sync.OnceValues(func() (string, error) {
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

var programDir string // where program has built it, if a test needed it

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// script returns a program of these lines of shell, which can start the job program in some special way.
func script(t *testing.T, format string, args ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job")
	testkit.WriteProgram(t, file, "#!/bin/sh\n"+fmt.Sprintf(format, args...)+"\n")
	return file
}

// job is a job of real processes that get everything from their environment.
type job struct {
	cmds   []*exec.Cmd
	output []*bytes.Buffer
}

func start(t *testing.T, n int, extra []string, args ...string) *job {
	t.Helper()
	return startEach(t, n, each(extra...), args...)
}

// each returns the same extra variables for every rank.
func each(extra ...string) func(rank int) []string { return func(int) []string { return extra } }

func startEach(t *testing.T, n int, extra func(rank int) []string, args ...string) *job {
	t.Helper()
	bin := program(t)
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

// wait waits for all processes, and kills them if they take too long.
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

// said returns what a process has written.
func (j *job) said(process int) string { return j.output[process].String() }

// succeed waits for all processes, and requires that they exit with 0.
func (j *job) succeed(t *testing.T) {
	t.Helper()
	for r, err := range j.wait() {
		if err != nil {
			t.Errorf("process %d: %v: %s", r, err, j.output[r])
		}
	}
	t.Log(j.output[0])
}
