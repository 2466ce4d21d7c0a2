package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/measures"
	"github.com/ubcoll/ubcoll/internal/race"
)

// traced returns, for each of n ranks, what strace with these options shows between the marks of a suite of package
// measures.
func traced(t *testing.T, n int, options, suite string) (steady []string) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil || race.Enabled {
		t.Skip("needs strace and a build without the race detector")
	}
	bin := program(t)
	dir := t.TempDir()
	bin = script(t, `exec %s -f -o %s/trace.$UBCOLL_RANK %s %s "$@"`, strace, dir, options, bin)
	startProgram(t, bin, n, each(), suite).succeed(t)
	for r := range n {
		b, err := os.ReadFile(fmt.Sprintf("%s/trace.%d", dir, r))
		require.NoError(t, err)
		_, after, ok := strings.Cut(string(b), measures.Begin)
		require.True(t, ok)
		calls, _, ok := strings.Cut(after, measures.End)
		require.True(t, ok)
		steady = append(steady, calls)
	}
	return steady
}

// TestSteadyCalls checks the system calls of a rank whose buffers are registered: after the first call it opens, makes
// and maps nothing.
func TestSteadyCalls(t *testing.T) {
	for r, steady := range traced(t, 4, "-e trace=openat,memfd_create,mmap,write", "steady") {
		for _, line := range strings.Split(steady, "\n") {
			require.NotRegexp(t, regexp.MustCompile(`openat\(|memfd_create\(|mmap\(.*MAP_SHARED`), line, "rank %d", r)
		}
	}
}

// TestPauses checks how long stop-the-world takes while ranks wait and reduce. It does not depend on the machine's
// speed: the bound on the median is thousands of times what a healthy build shows. It logs the figures.
func TestPauses(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("timing under the race detector says nothing")
	}
	j := start(t, 2, nil, "pauses")
	for r, err := range j.wait() {
		require.NoError(t, err, "rank %d: %s", r, j.output[r])
		t.Log(j.output[r])
	}
	for r := range j.cmds {
		for _, m := range regexp.MustCompile(`median (\S+),`).FindAllStringSubmatch(j.output[r].String(), -1) {
			d, err := time.ParseDuration(m[1])
			require.NoError(t, err)
			require.Less(t, d, 200*time.Millisecond)
		}
	}
}

// TestFirstUse logs how long the first use of a buffer takes, and when an abort is seen, with one processor for each
// rank.
func TestFirstUse(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("timing under the race detector says nothing")
	}
	j := start(t, 2, []string{"GOMAXPROCS=1", conform.DirVar + "=" + t.TempDir()}, "first-use")
	j.wait() // rank 0 aborts, so some fail
	for r := range j.cmds {
		t.Log(j.output[r])
	}
	require.Contains(t, j.output[1].String(), "abort seen after ")
}

// TestSmallCalls checks the system calls of ranks: small calls make none, except those of a long wait, whose number
// depends on what else the machine does.
func TestSmallCalls(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors")
	}
	for r, steady := range traced(t, 2, "", "steady-small") {
		lines := strings.Split(steady, "\n")
		caller, _, _ := strings.Cut(lines[len(lines)-1], " ") // the thread that wrote the end mark
		count, yields := 0, 0
		for _, line := range lines[1 : len(lines)-1] {
			switch {
			case !strings.HasPrefix(line, caller+" "):
			case strings.Contains(line, "sched_yield"):
				yields++
			case !passive.MatchString(line):
				count++
			}
		}
		t.Logf("rank %d: %d system calls and %d yields by the calling thread in %d calls", r, count, yields,
			measures.SmallCalls)
		require.Less(t, count, measures.SmallCalls/100, "rank %d: %s", r, steady[:min(len(steady), 3000)])
	}
}

// passive matches what threads do to wait, including looks at the peers' processes, and what the Go runtime does while
// they wait: signals, by which it stops goroutines, and its poller, which it wakes by 8 bytes. Of a call that strace shows
// in two lines it matches the first.
var passive = regexp.MustCompile(`SIGURG|rt_sigreturn|futex|nanosleep|poll\(|epoll_pwait|<unfinished|` +
	`"\\1\\0\\0\\0\\0\\0\\0\\0", 8\)|write resumed>\) += 8$`)
