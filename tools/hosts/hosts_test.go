//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestOrder(t *testing.T) {
	for _, k := range []struct {
		args string
		want []int
	}{
		{"2 -ranks 2,2", []int{0, 0, 1, 1}},
		{"2 -ranks 2,2 -map cyclic", []int{0, 1, 0, 1}},
		{"3 -ranks 3,0,1 -map cyclic", []int{0, 2, 0, 0}},
		{"3", []int{0, 1, 2}},
	} {
		p, err := parse(append(strings.Fields(k.args), "--", "true"), io.Discard)
		require.NoError(t, err)
		require.Equal(t, k.want, p.order(), k.args)
	}
	for _, bad := range []string{"0", "2 -ranks 1", "2 -ranks 1,2,3", "2 -map round", "2 -mpi none -name UPPER",
		"2 -ranks 0,0", "2 -set bogus", "2 -set c:X=1", "2 -set b:=1", "2 -set b:X", "2 -resolve zz=1", "2 -resolve b=1",
		"2 -resolve c=10.77.0.9", "2 -delay -1ms", "2 -rate fast", "2 -rate 1", "2 -rate -1gbit", "2 -rate 1gbit,1gbit",
		"2 -nets 2 -rate 1gbit,", "2 -nets 3 -rate 1gbit,1gbit", "2 -queue 0s"} {
		_, err := parse(append(strings.Fields(bad), "--", "true"), io.Discard)
		require.Error(t, err, bad)
	}
}

// -h lists the commands and every option, wherever it stands.
func TestHelp(t *testing.T) {
	for _, args := range []string{"-h", "--help", "2 -h", "2 -ranks 2,2 --help"} {
		var out strings.Builder
		_, err := parse(strings.Fields(args), &out)
		require.ErrorIs(t, err, flag.ErrHelp, args)
		for _, want := range []string{"usage: hosts N [options] -- COMMAND", "hosts kill ID HOST", "-ranks", "-mpi", "-delay", "-set", "-v\t"} {
			require.Contains(t, out.String(), want, args)
		}
	}
	_, err := parse(strings.Fields("2 -dealy 1ms -- true"), io.Discard)
	require.EqualError(t, err, "unknown flag --dealy: did you mean --delay?")
}

func TestOptions(t *testing.T) {
	p, err := parse(strings.Fields("2 -rate 1.5gbit -delay 1ms -set a:X=1=2 -set b:Y= -resolve b=fd77::1 -- true"), io.Discard)
	require.NoError(t, err)
	require.LessOrEqual(t, len(p.ID), 7)
	require.Equal(t, 1.5e9, bitsPerSecond(p.Rates[0]))
	for args, want := range map[string][]string{"2 -nets 2 -rate 1gbit": {"1gbit", "1gbit"}, "2 -nets 2 -rate 1gbit,100mbit": {"1gbit", "100mbit"}, "2": nil} {
		p, err := parse(append(strings.Fields(args), "--", "true"), io.Discard)
		require.NoError(t, err)
		require.Equal(t, want, p.Rates)
	}
	require.LessOrEqual(t, len("ub"+strconv.FormatInt(1<<22, 36)), 7)
}

// Nobody removes a run's folder while it is held, from its first moment on. Once it is not held, the next run removes
// it.
func TestClaim(t *testing.T) {
	in := t.TempDir()
	a, err := claim(in, "a")
	require.NoError(t, err)
	_, err = claim(in, "a")
	require.ErrorIs(t, err, os.ErrExist)
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			for i := range 50 {
				f, err := claim(in, fmt.Sprintf("b%d-%d", k, i))
				if !assert.NoError(t, err) || !assert.DirExists(t, f.Name()) {
					return
				}
				f.Close()
			}
		})
	}
	all.Wait()
	require.DirExists(t, a.Name())
	a.Close()
	b, err := claim(in, "b")
	require.NoError(t, err)
	defer b.Close()
	left, err := os.ReadDir(in)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// build builds the program, on a machine that can make hosts.
func build(t *testing.T) (bin string) {
	t.Helper()
	testkit.Long(t)
	bin = filepath.Join(t.TempDir(), "hosts")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(bin, "1", "-mpi", "none", "--", "true").CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == cannot && !env.Requires("hosts") {
		t.Skipf("this machine makes no hosts: %s", out)
	}
	require.NoError(t, err, "%s", out)
	return bin
}

// That exit code means only that the machine cannot make hosts.
func TestExitCodes(t *testing.T) {
	bin := build(t)
	for _, k := range []struct {
		args string
		code int
	}{{"exit 5", 5}, {"exit 77", 1}, {"kill -9 $$", 128 + 9}} {
		err := exec.Command(bin, "1", "--", "sh", "-c", k.args).Run()
		var e *exec.ExitError
		require.ErrorAs(t, err, &e)
		require.Equal(t, k.code, e.ExitCode(), k.args)
	}
	err := exec.Command(bin, "2", "-before", "cut z", "--", "true").Run()
	require.EqualError(t, err, "exit status 2")

	// Only the login node is told to end, so the exit code is its own.
	cmd := exec.Command(bin, "1", "-mpi", "none", "--", "sh", "-c", `trap "" TERM; echo up; while :; do sleep 1; done`)
	up, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = up.Read(make([]byte, 2))
	require.NoError(t, err)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid))
	require.NoError(t, err)
	login, err := strconv.Atoi(strings.TrimSpace(string(children)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(login, syscall.SIGTERM))
	require.EqualError(t, cmd.Wait(), "exit status 1")
}

var ids atomic.Int64

// nextID returns a name for a run that no other has.
func nextID() string {
	return fmt.Sprintf("r%s%c", strconv.FormatInt(int64(os.Getpid()), 36), 'a'+rune(ids.Add(1)%26))
}

// However a run ends, nothing of it is left except its folder, which the next run removes.
func TestRemoved(t *testing.T) {
	bin := build(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		id := nextID()
		sleep := fmt.Sprint(3600+int(s), ".", os.Getpid())
		cmd := exec.Command(bin, "3", "-name", id, "--", "sh", "-c", "echo up; exec sleep "+sleep)
		up, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = up.Read(make([]byte, 2))
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(s))
		require.Error(t, cmd.Wait())
		testkit.Eventually(t, func() bool { return len(running(sleep)) == 0 }, "processes stay after %v", s)
		require.NoError(t, exec.Command(bin, "1", "-name", "x"+id[1:], "--", "true").Run())
		require.NoDirExists(t, filepath.Join(runs, id))
	}
}

// running returns the processes that have this argument.
func running(argument string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "\x00"+argument+"\x00") {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2]) // the pattern has digits there
			pids = append(pids, pid)
		}
	}
	return pids
}

// When a signal that stops or kills is said to be sent, no process that it was for runs any more, however busy the machine
// is: here those of the host hardly get a processor.
func TestSignal(t *testing.T) {
	const busy, loop = 4, "while :; do :; done"
	bin := build(t)
	for range runtime.NumCPU() {
		other := exec.Command("sh", "-c", loop)
		require.NoError(t, other.Start())
		t.Cleanup(func() {
			other.Process.Kill()
			other.Wait()
		})
	}
	for _, k := range []struct {
		signal string
		done   func(pid int) bool
	}{{"STOP", procfs.Stopped}, {"KILL", procfs.Gone}} {
		for _, all := range []bool{true, false} { // the host's processes, or one of them
			t.Run(fmt.Sprintf("%s/all=%v", k.signal, all), func(t *testing.T) {
				id := nextID()
				mark := "busy-" + id
				cmd := exec.Command(bin, "1", "-name", id, "--", "nice", "-n", "19", "sh", "-c",
					fmt.Sprintf("for i in $(seq %d); do %s & done; echo $!; wait", busy, loop), mark)
				up, err := cmd.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				t.Cleanup(func() {
					cmd.Process.Kill()
					cmd.Wait()
				})
				var last string
				_, err = fmt.Fscan(up, &last)
				require.NoError(t, err)
				args, want := []string{"signal", id, "a", k.signal}, busy+1
				if !all {
					args, want = append(args, last), 1
				}
				before := running(mark)
				out, err := exec.Command(bin, args...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				done := 0
				for _, pid := range before {
					if k.done(pid) {
						done++
					}
				}
				require.GreaterOrEqual(t, done, want, "of %d processes", len(before))
			})
		}
	}
}
