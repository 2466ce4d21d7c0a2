package jobtest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/race"
)

// severalRanks are suites for processes of several ranks each: some peers are goroutines, others processes. What is for
// devices runs apart, since some others want none.
var severalRanks = [][]string{{"random", "bad", "order", "imports", "p2p", "family", "handles", "channels", "windows"},
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
			if race.Enabled && (n > 2 || suites[0] == "device") {
				continue // slow
			}
			t.Run(fmt.Sprintf("%s,ranks=%d", suites[0], 2*n), func(t *testing.T) {
				j := start(t, 2, perProcess(t, n, suites), suites...)
				for r, err := range j.wait(3 * time.Minute) {
					if err != nil {
						t.Errorf("process %d: %v: %s", r, err, j.output[r])
					}
				}
				t.Log(j.output[0])
				for _, s := range suites {
					require.Contains(t, j.output[0].String(), fmt.Sprintf("ok %s: %d ranks", s, 2*n))
				}
				require.NotContains(t, j.output[1].String(), "ok ", "rank 0 alone says so")
			})
		}
	}
}

func TestMPIRanksPerProcess(t *testing.T) {
	for _, suites := range severalRanks {
		t.Run(suites[0], func(t *testing.T) {
			cmd := mpiJob(t, 2, suites...)
			cmd.Env = append(os.Environ(), perProcess(t, 2, suites)...)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, s := range suites {
				require.Contains(t, string(out), fmt.Sprintf("ok %s: 4 ranks", s))
			}
		})
	}
}
