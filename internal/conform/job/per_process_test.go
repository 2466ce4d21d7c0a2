package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// severalRanks are suites for processes with several ranks each: some peers are goroutines, others processes. The suite
// for devices runs separately, since some others need to have none.
var severalRanks = [][]string{{"random", "bad", "order", "imports", "p2p", "family", "handles", "channels", "access", "atomics", "windows"},
	{"device"}}

func perProcess(t *testing.T, n int, suites []string) []string {
	environ := []string{fmt.Sprintf("UBCOLL_RANKS_PER_PROCESS=%d", n)}
	if suites[0] == "device" {
		environ = append(environ, gpus(t)...)
	}
	return environ
}

func TestRanksPerProcess(t *testing.T) {
	for _, suites := range severalRanks {
		for _, n := range []int{2, 3} {
			if n > 2 && testing.Short() || race.Enabled && (n > 2 || suites[0] == "device") {
				continue // slow
			}
			if short := testing.Short() || race.Enabled; !testkit.Full() && !short && (n > 2) == (suites[0] == "device") {
				continue // one number for each: both have peers of both kinds
			}
			t.Run(fmt.Sprintf("%s,ranks=%d", suites[0], 2*n), func(t *testing.T) {
				suites := testkit.Turns(t, 3, suites)
				j := startProgram(t, always(t), 2, each(perProcess(t, n, suites)...), suites...)
				j.succeed(t)
				for _, s := range suites {
					require.Contains(t, j.output[0].String(), fmt.Sprintf("ok %s: %d ranks", s, 2*n))
				}
				require.NotContains(t, j.output[1].String(), "ok ", "rank 0 alone says so")
			})
		}
	}
}

// underOther reports whether the tests under the other MPI have what needs a launcher, but runs the same under each: host
// memory under Open MPI, devices under MPICH. Full runs have both under both.
func underOther(device bool) bool {
	return !testkit.Full() && device != (os.Getenv("MPI_NAME") == "mpich")
}

func TestMPIRanksPerProcess(t *testing.T) {
	for _, suites := range severalRanks {
		t.Run(suites[0], func(t *testing.T) {
			mpiJob(t, 2) // skips without one
			if underOther(suites[0] == "device") {
				t.Skip("the other MPI's run has it")
			}
			runMPI(t, 2, 4, perProcess(t, 2, suites), suites...)
		})
	}
}

// TestMPIBench measures and verifies with processes of several ranks, on host memory or on devices. Rank 0 writes one
// table, and the exit code says what went wrong.
func TestMPIBench(t *testing.T) {
	for _, device := range []string{"host", "cuda"} {
		if underOther(device == "cuda") {
			continue
		}
		for _, k := range []struct {
			name, args string
			code       int
			once       string // must be in the output exactly once
		}{
			{"bench", "bench all_reduce FLAGS -b 64 -e 16K -f 16 -n 4", 0, "# Out of bounds values : 0 OK"},
			{"window", "bench window FLAGS -b 1K -e 1K -n 4", 0, "# Out of bounds values : 0 OK"},
			{"verify", "verify FLAGS -e 1K all_gather", 0, ": 0 calls with wrong elements: OK"},
			{"too slow", "bench all_reduce FLAGS -b 64 -e 64 -n 4 --min-busbw 1e9", 7, ""},
			{"bad root", "bench broadcast FLAGS -b 64 -e 64 -n 4 -r 4", 6, ""},
		} {
			t.Run(device+"/"+k.name, func(t *testing.T) {
				cmd := mpiJob(t, 2)
				cmd.Args[len(cmd.Args)-1] = os.Getenv("CONFORM_UBCOLL")
				args := strings.ReplaceAll(k.args, "FLAGS", "-t 2 -device "+device)
				cmd.Args = append(cmd.Args, strings.Fields(args)...)
				cmd.Env = os.Environ()
				if device == "cuda" {
					cmd.Env = append(cmd.Env, gpus(t)...)
				}
				out, _ := cmd.CombinedOutput()
				require.Equal(t, k.code, cmd.ProcessState.ExitCode(), "%s", out)
				if k.code == 0 { // an aborted job may lose its output
					require.Equal(t, 1, strings.Count(string(out), k.once), "%s", out)
				}
			})
		}
	}
}
