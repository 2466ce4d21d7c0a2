package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestKill kills a random rank at a random moment, again and again. Every survivor must say which one, long before it
// would time out, and nothing may be left behind. It logs how soon they say so; the documentation says two seconds.
func TestKill(t *testing.T) {
	for _, seed := range testkit.Seeds(t) {
		pick := rand.New(rand.NewPCG(seed, 0))
		killRounds(t, "kill", testkit.Often(25), func() int { return 2 + pick.IntN(3) }, pick)
	}
}

// TestKillMany is TestKill with so many ranks that they agree by group. The victim may lead a group, or not.
func TestKillMany(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("takes long")
	}
	pick := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	killRounds(t, "kill", testkit.Often(10), func() int { return 17 + pick.IntN(8) }, pick)
}

// TestKillP2P is TestKill with messages under way.
func TestKillP2P(t *testing.T) {
	for _, seed := range testkit.Seeds(t) {
		pick := rand.New(rand.NewPCG(seed, 0))
		killRounds(t, "kill-p2p", testkit.Often(10), func() int { return 2 + pick.IntN(3) }, pick)
	}
}

// TestKillWait kills a random rank while all ranks signal and wait.
func TestKillWait(t *testing.T) {
	for _, seed := range testkit.Seeds(t) {
		pick := rand.New(rand.NewPCG(seed, 1))
		killRounds(t, "kill-wait", testkit.Often(20), func() int { return 2 + pick.IntN(3) }, pick)
	}
}

// TestKillFirst kills a random rank at its first large operation, while the others map its memory.
func TestKillFirst(t *testing.T) {
	rounds := max(testkit.Often(100), 3)
	if testkit.Full() {
		rounds = 250 // for each of two seeds
	}
	for _, seed := range testkit.Seeds(t) {
		pick := rand.New(rand.NewPCG(seed, 2))
		for k := range rounds {
			n := 3 + pick.IntN(2)
			victim, after := pick.IntN(n), pick.IntN(20_000)
			t.Run(fmt.Sprintf("%d/ranks=%d", k, n), func(t *testing.T) {
				t.Parallel()
				dir, tmp := t.TempDir(), t.TempDir()
				require.NoError(t, os.WriteFile(endings.VictimFile(dir), fmt.Appendln(nil, victim, after), 0o600))
				began := time.Now()
				j := start(t, n, []string{conform.DirVar + "=" + dir, "TMPDIR=" + tmp}, "kill-first")
				j.wait()
				checkReports(t, dir, n, victim, began, j.said)
				require.Empty(t, leftovers(t, tmp))
			})
		}
	}
}

// kill kills a rank, which is a process of its own, some time after all have reported in dir that they are ready.
func (j *job) kill(t *testing.T, dir string, victim int, after time.Duration) (killed time.Time) {
	t.Helper()
	awaitReady(t, dir, len(j.cmds), j.said)
	time.Sleep(after)
	require.NoError(t, j.cmds[victim].Process.Kill())
	return time.Now()
}

// leftovers returns what a job with temporary folder tmp has left behind, there and in /dev/shm.
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

// killRounds does rounds in parallel, as many as go test allows: survivors spend most of the time waiting. The victim
// and the moment are drawn beforehand, so a seed repeats them.
func killRounds(t *testing.T, suite string, rounds int, ranks func() int, pick *rand.Rand) {
	testkit.Long(t)
	for k := range rounds {
		n, own := ranks(), rand.New(rand.NewPCG(pick.Uint64(), 0))
		t.Run(fmt.Sprintf("%d/ranks=%d", k, n), func(t *testing.T) {
			t.Parallel()
			killOne(t, suite, n, own)
		})
	}
}

func killOne(t *testing.T, suite string, n int, pick *rand.Rand) {
	dir, tmp := t.TempDir(), t.TempDir()
	j := start(t, n, []string{conform.DirVar + "=" + dir, "TMPDIR=" + tmp}, suite)
	after, victim := time.Duration(pick.IntN(100_000))*time.Microsecond, pick.IntN(n)
	killed := j.kill(t, dir, victim, after)
	j.wait()
	checkReports(t, dir, n, victim, killed, j.said)
	require.Empty(t, leftovers(t, tmp))
}

// awaitReady waits until all ranks have reported in dir that they are ready.
func awaitReady(t *testing.T, dir string, ranks int, output func(rank int) string) {
	t.Helper()
	for r := range ranks {
		ready := endings.ReadyFile(dir, r)
		if !testkit.Until(func() bool { _, err := os.Stat(ready); return err == nil }) {
			t.Fatalf("rank %d is not inside after %v: %s", r, testkit.Limit, output(r))
		}
	}
}

// checkReports checks that the survivors report the victim as lost.
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
