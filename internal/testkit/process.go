package testkit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ChildVar names what a test program does when it runs as another process: one of its Children.
const ChildVar = "UBCOLL_TEST_CHILD"

// NoSleep is a variable for children that have nothing left to report when they exit: with the race detector, a program
// otherwise sleeps for a second then.
const NoSleep = "GORACE=atexit_sleep_ms=0"

// Children is for the TestMain of a package whose tests start their own program as another process. There it runs the
// function that Child named, and ends the process.
func Children(children map[string]func() error) {
	name := os.Getenv(ChildVar)
	if name == "" {
		return
	}
	if err := children[name](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Child returns the command that starts this test program as the child of that name, with more environment variables.
func Child(name string, environ ...string) *exec.Cmd {
	program := "/proc/self/exe" // works for another user, too
	if _, err := os.Stat(program); err != nil {
		program = os.Args[0]
	}
	cmd := exec.Command(program)
	cmd.Env = append(append(os.Environ(), ChildVar+"="+name), environ...)
	return cmd
}

// RunChild runs a child that checks itself.
func RunChild(t testing.TB, name string, environ ...string) {
	t.Helper()
	out, err := Child(name, environ...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// Process is a running child that answers in lines of JSON. It ends when its standard input ends, when the test ends,
// or when it does not answer.
type Process struct {
	Cmd *exec.Cmd
	In  io.WriteCloser
	out *bufio.Reader
}

// Start starts a child.
func Start(t testing.TB, child *exec.Cmd) *Process {
	t.Helper()
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		in.Close()
		child.Process.Kill()
		child.Wait()
	})
	return &Process{child, in, bufio.NewReader(out)}
}

// Read reads the child's next line. If the child is silent for Limit, Read kills it, so that no test waits for it
// forever.
func (p *Process) Read(t testing.TB, v any) {
	t.Helper()
	silent := time.AfterFunc(Limit, func() { p.Cmd.Process.Kill() })
	defer silent.Stop()
	line, err := p.out.ReadBytes('\n')
	require.NoError(t, err, "the child ended early")
	require.NoError(t, json.Unmarshal(line, v), "%s", line)
}

// ProgramVar is set for a test binary that is to do what its program does.
const ProgramVar = "UBCOLL_TEST_MAIN"

// IsProgram is for the TestMain of a command whose tests run it as users do: Program starts the test binary again, and
// there IsProgram is true, so that TestMain does what main does.
func IsProgram() bool { return os.Getenv(ProgramVar) != "" }

// Program runs the command with args and more environment variables, and returns its output and exit code.
func Program(t testing.TB, environ []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := Command(t, environ, args...)
	cmd.WaitDelay = Limit
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// Command returns the command with args and more environment variables, not started yet. If t ends first, the command
// is killed.
func Command(t testing.TB, environ []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	for _, v := range os.Environ() { // only the test's own launcher and settings
		if name, _, _ := strings.Cut(v, "="); name != "NTHREADS" && !strings.Contains(name, "UBCOLL_") &&
			!strings.Contains(name, "MPI") && !strings.Contains(name, "PMI") && !strings.HasPrefix(name, "SLURM_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, ProgramVar+"=1", NoSleep), environ...)
	return cmd
}

// Compiler returns the first of these compilers that exists. Machines that only run the tests may have none: then it
// skips t.
func Compiler(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("no compiler: none of %q", names)
	return ""
}
