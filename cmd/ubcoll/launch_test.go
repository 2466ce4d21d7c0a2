package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// rsh is a command in place of ssh, which runs what it is told on this host: with another working directory, without
// most of the environment, and behind a shell that greets.
func rsh(t *testing.T) string {
	name := filepath.Join(t.TempDir(), "rsh")
	script := "#!/bin/sh\n[ \"$1\" != lost ] || exit 255\nshift\ncd /\necho welcome\n" +
		"exec env -i PATH=\"$PATH\" " + testkit.ProgramVar + "=1 " + testkit.NoSleep + " sh -c \"$*\"\n"
	testkit.WriteProgram(t, name, script)
	return name
}

func TestLaunch(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	agent := rsh(t)
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o644))
	dir, err := os.Getwd()
	require.NoError(t, err)
	hosts := []string{"UBCOLL_RSH=" + agent}
	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		code   int
		stdout []string // lines, in some order
		stderr string
	}{
		{"ranks", nil, []string{"-np", "3", "--", "sh", "-c", "echo $UBCOLL_RANK of $UBCOLL_SIZE"}, 0,
			[]string{"0 of 3", "1 of 3", "2 of 3"}, ""},
		{"prefix", nil, []string{"-np", "2", "-prefix", "--", "printf", `a\nb`}, 0, []string{"[0] a", "[0] b", "[1] a", "[1] b"}, ""},
		{"prefix of errors", nil, []string{"-np", "1", "-prefix", "--", "sh", "-c", "echo x >&2"}, 0, nil, "[0] x\n"},
		{"nobody has the input", nil, []string{"-np", "2", "--", "cat"}, 0, nil, ""},
		{"more ranks than processors", nil, []string{"-np", "200", "--", "true"}, 0, nil, "200 ranks on the "},
		{"no secret of the one around", []string{"UBCOLL_SECRET=one-that-is-known"},
			[]string{"-np", "1", "--", "sh", "-c", "[ $UBCOLL_SECRET != one-that-is-known ]"}, 0, nil, ""},
		{"the first that failed", nil, []string{"-np", "3", "--", "sh", "-c", "[ $UBCOLL_RANK != 1 ] || exit 9; sleep 600"}, 9,
			nil, "ubcoll launch: rank 1 on "},
		{"others fail then", nil, []string{"-np", "2", "--", "sh", "-c",
			"[ $UBCOLL_RANK != 1 ] || exit 9; trap 'exit 4' TERM; while :; do sleep 0.1; done"}, 9, nil, "exited with code 9: ending the others"},
		{"who does not end is killed", nil, []string{"-np", "2", "-grace", "10ms", "--", "sh", "-c",
			"[ $UBCOLL_RANK != 1 ] || exit 9; trap '' TERM; while :; do sleep 0.1; done"}, 9, nil, ""},
		{"by a signal", nil, []string{"-np", "1", "--", "sh", "-c", "kill -SEGV $$"}, 139, nil, "ended by a signal: segmentation fault"},
		{"others go on", nil, []string{"-np", "3", "-survive", "--", "sh", "-c", "[ $UBCOLL_RANK != 1 ] || kill -KILL $$; sleep 0.3; echo $UBCOLL_RANK"}, 0,
			[]string{"0", "2"}, "was ended by a signal: killed: the others go on\n"},
		{"one that goes on fails", nil, []string{"-np", "3", "-survive", "--", "sh", "-c",
			"[ $UBCOLL_RANK != 1 ] || kill -KILL $$; sleep 0.$UBCOLL_RANK; exit $((UBCOLL_RANK + 4))"}, 4, nil, "exited with code 4: the others go on\n"},
		{"all are killed", nil, []string{"-np", "2", "-survive", "--", "sh", "-c", "kill -KILL $$"}, 137, nil, "ended by a signal: killed\n"},
		{"a host is lost, and others go on", hosts, []string{"-hosts", "a,b", "-survive", "--", "sh", "-c",
			"[ $UBCOLL_RANK != 1 ] || kill -KILL $PPID; sleep 0.3; echo $UBCOLL_RANK"}, 0, []string{"0"}, "host b is lost, with 1 rank: its agent ended"},
		{"no program", nil, []string{"-np", "2", "--", "./nope"}, 127, nil, "did not start: fork/exec ./nope: no such file"},
		{"no program to run", nil, []string{"-np", "2", "--", plain}, 126, nil, "permission denied"},
		{"words", hosts, []string{"-hosts", "a", "--", "printf", `%s|`, "a b", `'$x"`, "", "*"}, 0, []string{`a b|'$x"||*|`}, "welcome"},
		{"blocks", hosts, []string{"-hosts", "a:2,b:1", "--", "sh", "-c", "echo $UBCOLL_RANK"}, 0, []string{"0", "1", "2"}, ""},
		{"folder", hosts, []string{"-hosts", "a", "--", "pwd"}, 0, []string{dir}, ""},
		{"environment", append([]string{"UBCOLL_LOG=info", "MINE=1", "YOURS=2"}, hosts...),
			[]string{"-hosts", "a", "-x", "MINE", "-x", "OURS=x y", "--", "sh", "-c", `echo "$UBCOLL_LOG $MINE $YOURS $OURS"`}, 0,
			[]string{"info 1  x y"}, ""},
		{"on this host", []string{"UBCOLL_RSH=false"}, []string{"-hosts", "localhost:2", "--", "echo", "x"}, 0, []string{"x", "x"}, ""},
		{"no host", hosts, []string{"-hosts", "a,lost", "--", "echo", "x"}, 3, nil, "host lost: the agent did not start (exit status 255)"},
		{"no ssh", []string{"UBCOLL_RSH=/none"}, []string{"-hosts", "a", "--", "true"}, 1, nil, "host a: fork/exec /none"},
		{"a job", hosts, []string{"-hosts", "a:2,b:2", "--", self, "verify", "-e", "1K", "-device", "host", "all_reduce"}, 0, nil, ""},
		{"a job that fails", nil, []string{"-np", "2", "--", self, "bench", "reduce", "-b", "64", "-e", "64", "-n", "3", "-r", "4"}, 6, nil,
			"root 4 of 2 ranks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch c.name {
			case "no host", "more ranks than processors", "others fail then", "who does not end is killed":
				testkit.LongOrRace(t)
			}
			stdout, stderr, code := testkit.Program(t, c.env, append([]string{"launch"}, c.args...)...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stderr, c.stderr)
			if c.name == "a job" {
				require.Contains(t, stdout, "verify: 4 ranks on host memory")
				return
			}
			lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
			if stdout == "" {
				lines = nil
			}
			slices.Sort(lines)
			require.Equal(t, c.stdout, lines)
		})
	}
}

// UBCOLL_FAULT gets to the ranks of all hosts.
func TestLaunchFault(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	_, stderr, code := testkit.Program(t, []string{"UBCOLL_RSH=" + rsh(t), "UBCOLL_FAULT=kill:rank=2,after=20"}, "launch", "-hosts", "a:2,b:2", "--",
		self, "bench", "all_reduce", "-device", "host", "-b", "8", "-e", "8", "-n", "50")
	require.NotZero(t, code)
	require.Contains(t, stderr, "UBCOLL_FAULT is set: this rank fails on request")
	require.Regexp(t, `rank 2 on \S+ was ended by a signal: killed`, stderr)
}

// started is a launch of shells that run script, once each has said its process id.
type started struct {
	*exec.Cmd
	pids []int
	out  *bufio.Reader
}

func launched(t *testing.T, ranks int, script string, flags ...string) *started {
	words := append(append([]string{"launch", "-np", strconv.Itoa(ranks)}, flags...), "--", "sh", "-c", script)
	s := &started{Cmd: testkit.Command(t, nil, words...)}
	s.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(func() { s.Process.Kill(); s.Wait() })
	s.out = bufio.NewReader(out)
	for range ranks {
		for word := range strings.FieldsSeq(s.line(t)) {
			pid, err := strconv.Atoi(word)
			require.NoError(t, err)
			s.pids = append(s.pids, pid)
		}
	}
	return s
}

func (s *started) line(t *testing.T) string {
	line, err := s.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(line)
}

// code waits for the end, and gives the exit code.
func (s *started) code(t *testing.T) int {
	_, err := io.Copy(io.Discard, s.out)
	require.NoError(t, err)
	_ = s.Wait()
	return s.ProcessState.ExitCode()
}

// allGone waits until the processes have ended. Zombies may be left where nobody is there to ask for them.
func allGone(t *testing.T, pids []int) {
	testkit.Eventually(t, func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !procfs.Gone(pid) })
	})
}

// Signals reach every rank and what it started; those that end the job are its exit code, too.
func TestLaunchSignals(t *testing.T) {
	for _, c := range []struct {
		sig  syscall.Signal
		name string
		code int
	}{{syscall.SIGINT, "INT", 130}, {syscall.SIGTERM, "TERM", 143}, {syscall.SIGHUP, "HUP", 129}, {syscall.SIGUSR1, "USR1", 7}} {
		t.Run(c.name, func(t *testing.T) {
			s := launched(t, 2, "trap 'echo got "+c.name+"; exit 7' "+c.name+"; echo $$; while :; do sleep 0.05; done")
			require.NoError(t, s.Process.Signal(c.sig))
			require.Equal(t, "got "+c.name, s.line(t))
			require.Equal(t, "got "+c.name, s.line(t))
			require.Equal(t, c.code, s.code(t))
			allGone(t, s.pids)
		})
	}
}

// Another signal to end kills ranks that do not listen.
func TestLaunchSecondSignal(t *testing.T) {
	testkit.LongOrRace(t)
	s := launched(t, 2, "trap 'echo no' TERM; echo $$; while :; do sleep 0.05; done", "-grace", "1h")
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "no", s.line(t))
	for ended := false; !ended; {
		time.Sleep(200 * time.Millisecond) // those that come at once are of the first
		require.NoError(t, s.Process.Signal(syscall.SIGTERM))
		ended = !slices.ContainsFunc(s.pids, func(pid int) bool { return !procfs.Gone(pid) })
	}
	require.Equal(t, 143, s.code(t))
}

// Nothing is left of a job whose launcher is killed, nor of a rank that has ended.
func TestLaunchLeavesNothing(t *testing.T) {
	s := launched(t, 3, "sleep 600 & echo $$ $!; sleep 600", "-grace", "50ms")
	require.Len(t, s.pids, 6)
	require.NoError(t, s.Process.Kill())
	allGone(t, s.pids)

	s = launched(t, 2, "sleep 600 & echo $$ $!")
	require.Equal(t, 0, s.code(t))
	allGone(t, s.pids)
}

// apartFrom is what a rank starts outside of its process group: a process with a session of its own, one whose parent
// has ended, and one that does not listen to SIGTERM. The rank says the process ids, and its own.
const apartFrom = "setsid sleep 600 & a=$!; b=$(setsid sh -c 'sleep 600 >&- 2>&- & echo $!'); " +
	"c=$(setsid sh -c 'trap \"\" TERM INT; sh -c \"while :; do sleep 0.05; done\" >&- 2>&- & echo $!'); echo $$ $a $b $c; "

// No process that a rank has started outlives the job, however it ends: launch returns after they are gone.
func TestLaunchEndsWhatLeftTheGroup(t *testing.T) {
	end := func(sig syscall.Signal) func(*testing.T, *started) {
		return func(t *testing.T, s *started) { require.NoError(t, s.Process.Signal(sig)) }
	}
	nothing := func(*testing.T, *started) {}
	for _, c := range []struct {
		name, then string
		end        func(*testing.T, *started)
		code       int
	}{
		{"ranks end", "", nothing, 0},
		{"a rank fails", "[ $UBCOLL_RANK != 1 ] || exit 9; sleep 600", nothing, 9},
		{"SIGTERM", "sleep 600", end(syscall.SIGTERM), 143},
		{"SIGINT", "sleep 600", end(syscall.SIGINT), 130},
		{"twice SIGINT", "trap '' INT; sleep 600", func(t *testing.T, s *started) {
			end(syscall.SIGINT)(t, s)
			time.Sleep(600 * time.Millisecond) // one that comes earlier counts as the first
			end(syscall.SIGINT)(t, s)
		}, 130},
		{"launch is killed", "sleep 600", end(syscall.SIGKILL), -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "SIGINT" || c.name == "twice SIGINT" {
				testkit.LongOrRace(t)
			}
			grace := "50ms"
			if c.name == "twice SIGINT" {
				grace = "1s"
			}
			s := launched(t, 2, apartFrom+c.then, "-grace", grace)
			require.Len(t, s.pids, 8)
			c.end(t, s)
			require.Equal(t, c.code, s.code(t))
			if c.code == -1 {
				allGone(t, s.pids)
			}
			for _, pid := range s.pids {
				require.True(t, procfs.Gone(pid), "%d of %d", pid, s.pids)
			}
		})
	}
}

// A process outside of its rank's group gets SIGTERM when the job ends, and time to end by itself.
func TestLaunchGraceOutsideTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "word")
	s := launched(t, 1, "setsid sh -c 'trap \"echo bye >"+file+"; exit\" TERM; echo $$; while :; do sleep 0.05; done' >"+file+
		".pid 2>&1 & while ! [ -s "+file+".pid ]; do sleep 0.01; done; echo $(cat "+file+".pid)", "-grace", "1h")
	require.Equal(t, 0, s.code(t))
	word, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "bye\n", string(word))
	require.True(t, procfs.Gone(s.pids[0]))
}

// A process outside of its rank's group goes on while the job does, and its end leaves no zombie.
func TestLaunchReapsWhatLeftTheGroup(t *testing.T) {
	s := launched(t, 1, "a=$(setsid sh -c 'sleep 0 >&- 2>&- & echo $!'); b=$(setsid sh -c 'sleep 600 >&- 2>&- & echo $!'); "+
		"echo $a $b; sleep 600")
	testkit.Eventually(t, func() bool { _, err := os.Stat("/proc/" + strconv.Itoa(s.pids[0])); return err != nil })
	require.False(t, procfs.Gone(s.pids[1]))
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 143, s.code(t))
	require.True(t, procfs.Gone(s.pids[1]))
}
