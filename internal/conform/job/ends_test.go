package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// ending is a job of n processes that writes its standard error to files.
type ending struct {
	*job
	dir string
}

func startEnding(t *testing.T, n int, extra []string, suite string) *ending {
	bin := program(t)
	dir := t.TempDir()
	bin = script(t, `exec %s "$@" 2>%s/err.$UBCOLL_RANK`, bin, dir)
	return &ending{startProgram(t, bin, n, each(append(extra, conform.DirVar+"="+dir)...), suite), dir}
}

// alone makes the process one that no launcher has started, with goroutine ranks.
var alone = []string{"UBCOLL_RANK=", "UBCOLL_SIZE=", "NTHREADS=3"}

func (e *ending) said(process int) string {
	for _, name := range []string{fmt.Sprint("err.", process), "err."} {
		if b, err := os.ReadFile(filepath.Join(e.dir, name)); err == nil {
			return string(b)
		}
	}
	return ""
}

func (e *ending) awaitReady(t *testing.T, ranks int) {
	t.Helper()
	awaitReady(t, e.dir, ranks, func(int) string { return e.said(0) })
}

// codes returns the exit codes; 128+n for a process killed by signal n.
func (e *ending) codes() []int {
	var codes []int
	for _, err := range e.wait() {
		var exit *exec.ExitError
		switch {
		case err == nil:
			codes = append(codes, 0)
		case !errors.As(err, &exit):
			codes = append(codes, -1)
		case exit.Sys().(syscall.WaitStatus).Signaled():
			codes = append(codes, 128+int(exit.Sys().(syscall.WaitStatus).Signal()))
		default:
			codes = append(codes, exit.ExitCode())
		}
	}
	return codes
}

// However a job's function handles a signal, the process exits with 128 plus its number.
func TestSignal(t *testing.T) {
	for _, suite := range []string{"ends-wait", "ends-swallow", "ends-plain", "ends-ignore"} {
		for _, k := range []struct {
			name  string
			n     int
			ranks int
			extra []string
		}{
			{"goroutines", 1, 3, alone}, {"processes", 3, 3, nil}, {"per process", 2, 4, []string{"UBCOLL_RANKS_PER_PROCESS=2"}},
		} {
			for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
				t.Run(fmt.Sprintf("%s/%s/%d", suite, k.name, int(sig)), func(t *testing.T) {
					t.Parallel()
					e := startEnding(t, k.n, k.extra, suite)
					e.awaitReady(t, k.ranks)
					for _, c := range e.cmds {
						require.NoError(t, c.Process.Signal(sig))
					}
					for p := range e.cmds {
						testkit.Eventually(t, func() bool { return strings.Contains(e.said(p), "another one kills it") })
					}
					require.NoError(t, os.WriteFile(endings.EnoughFile(e.dir), nil, 0o600))
					for p, code := range e.codes() {
						require.Equal(t, 128+int(sig), code, "%s", e.said(p))
						require.Equal(t, 1, strings.Count(e.said(p), "another one kills it"))
					}
				})
			}
		}
	}
}

func TestSecondSignalKills(t *testing.T) {
	e := startEnding(t, 1, alone, "ends-ignore")
	e.awaitReady(t, 3)
	require.NoError(t, e.cmds[0].Process.Signal(syscall.SIGTERM))
	testkit.Eventually(t, func() bool { return strings.Contains(e.said(0), "another one kills it") })
	require.NoError(t, e.cmds[0].Process.Signal(syscall.SIGTERM))
	require.Equal(t, []int{128 + 15}, e.codes())
}

// A signal ends a process that still waits for the others to join.
func TestSignalWhileJoining(t *testing.T) {
	for rank := range 2 {
		t.Run(fmt.Sprint("rank ", rank), func(t *testing.T) {
			t.Parallel()
			where := filepath.Join(t.TempDir(), "s")
			joining := func() bool { // it handles signals by then
				_, err := os.Stat(where) // rank 0 listens
				return err == nil
			}
			if rank == 1 { // which tries again each time that it is hung up on
				l, err := net.Listen("unix", where)
				require.NoError(t, err)
				t.Cleanup(func() { l.Close() })
				var tried atomic.Bool
				joining = tried.Load
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						tried.Store(true)
						c.Close()
					}
				}()
			}
			e := startEnding(t, 1, []string{"UBCOLL_SIZE=2", fmt.Sprint("UBCOLL_RANK=", rank), "UBCOLL_RENDEZVOUS=unix:" + where}, "order")
			testkit.Eventually(t, joining)
			require.NoError(t, e.cmds[0].Process.Signal(syscall.SIGTERM))
			begin := time.Now()
			require.Equal(t, []int{128 + 15}, e.codes(), "%s", e.said(rank))
			t.Logf("after %v: %s", time.Since(begin), e.said(rank))
			require.Contains(t, e.said(rank), "while the job was starting: signal: terminated")
			require.NotContains(t, e.said(rank), ubcoll.ErrTimeout.Error(), "the join went on until its time was up")
		})
	}
}

// One rank gets a signal: the others always exit with the same code.
func TestSignalOne(t *testing.T) {
	for k := range testkit.Often(40) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			e := startEnding(t, 3, nil, "ends-wait")
			e.awaitReady(t, 3)
			require.NoError(t, e.cmds[1].Process.Signal(syscall.SIGTERM))
			require.Equal(t, []int{3, 128 + 15, 3}, e.codes(), "%s%s%s", e.said(0), e.said(1), e.said(2))
		})
	}
}

// The rank that panicked prints the panic's stack. An error of the program's own is printed with its rank.
func TestEnds(t *testing.T) {
	for _, k := range []struct {
		suite, name string
		n           int
		extra       []string
		codes       []int
	}{
		{"ends-panic", "goroutines", 1, alone, []int{2}},
		{"ends-panic", "processes", 3, nil, []int{3, 2, 3}},
		{"ends-error", "goroutines", 1, alone, []int{1}},
		{"ends-error", "processes", 3, nil, []int{3, 1, 3}},
		{"ends-error", "per process", 2, []string{"UBCOLL_RANKS_PER_PROCESS=2"}, []int{1, 3}},
	} {
		t.Run(k.suite+"/"+k.name, func(t *testing.T) {
			t.Parallel()
			e := startEnding(t, k.n, k.extra, k.suite)
			require.Equal(t, k.codes, e.codes())
			for p, code := range k.codes {
				text := e.said(p)
				if code == 3 {
					require.LessOrEqual(t, strings.Count(text, "\n"), 2, "%s", text)
					require.NotContains(t, text, "goroutine ", "%s", text)
					require.Contains(t, text, map[string]string{"ends-panic": "panic: on purpose", "ends-error": "no luck"}[k.suite])
					continue
				}
				require.Contains(t, text, "rank 1 on host")
				if k.suite == "ends-panic" {
					require.Equal(t, 1, strings.Count(text, "EndsPanic("), "its stack, once: %s", text)
				}
			}
		})
	}
}
