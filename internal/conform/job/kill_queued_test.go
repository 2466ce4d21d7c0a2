package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/endings"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestDeviceKillQueued kills a process while much work is queued on devices that waits for it. With CONFORM_FULL=1 it
// queues as much as the suites say, and the other's error must come within 2 s with two devices, or 5 s if the two share
// one. CONFORM_ROUNDS=10 does it 10 times.
func TestDeviceKillQueued(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the processes would be slow")
	}
	full := os.Getenv(endings.FullVar) == "1"
	if full && cuda.Have().Err != nil && !env.Requires("cuda") {
		t.Skip(cuda.Have())
	}
	environ := gpus(t)
	rounds, err := conform.Number("CONFORM_ROUNDS", 1)
	require.NoError(t, err)
	limit := 2 * time.Second
	if all, err := cuda.Devices(); err == nil && len(all) < 2 {
		limit = 5 * time.Second
	}
	bin := program(t)
	pick := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for _, suite := range []string{"eager", "graph", "messages", "channel"} {
		t.Run(suite, func(t *testing.T) {
			for round := range rounds {
				victim, wait := pick.IntN(2), time.Duration(pick.IntN(300))*time.Millisecond
				at, exit := killQueued(t, bin, "kill-queued-"+suite, victim, wait, environ)
				t.Logf("round %d: rank %d killed %v after the start; its process was gone after %v, the other's error came after %v",
					round, victim, wait, exit.Round(time.Millisecond), at.Round(time.Millisecond))
				if full {
					require.Less(t, at, limit)
				}
			}
		})
	}
}

// killQueued returns how long after the kill the survivor had its error, and the victim was gone.
func killQueued(t *testing.T, bin, suite string, victim int, wait time.Duration, environ []string) (at, exit time.Duration) {
	const n = 2
	dir := t.TempDir()
	environ = append([]string{conform.DirVar + "=" + dir, fmt.Sprintf("%s=%d", endings.VictimVar, victim)}, environ...)
	j := startProgram(t, bin, n, each(environ...), suite)
	gone, done := make(chan time.Time, 1), make(chan struct{})
	go func() {
		j.cmds[victim].Wait()
		gone <- time.Now()
	}()
	go func() {
		j.cmds[1-victim].Wait()
		close(done)
	}()
	killed := j.kill(t, dir, victim, wait)
	exit = (<-gone).Sub(killed)
	select {
	case <-done:
	case <-time.After(testkit.Limit):
		t.Fatalf("rank %d goes on, %v after the kill", 1-victim, testkit.Limit)
	}
	checkReports(t, dir, n, victim, killed, j.said)
	report, err := endings.ReadReport(dir, 1-victim)
	require.NoError(t, err)
	return report.At.Sub(killed), exit
}
