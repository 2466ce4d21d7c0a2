package jobtest

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/race"
)

// takeBacks is how often memory is taken back: JOBTEST_TAKEBACKS, or what takes a few seconds. 10,000 are for once.
func takeBacks(t *testing.T) string {
	t.Helper()
	n := "300"
	if s := os.Getenv("JOBTEST_TAKEBACKS"); s != "" {
		n = s
	} else if race.Enabled || testing.Short() {
		n = "40"
	}
	t.Logf("%s rounds", n)
	return n
}

func TestTakeBackLocal(t *testing.T) {
	t.Setenv("JOBTEST_TAKEBACKS", takeBacks(t))
	local(t, 2, ubcoll.Options{}, "take-back")
}

func TestTakeBackProcesses(t *testing.T) {
	t.Logf("TEST_SEED=%d", Seed())
	j := start(t, 2, []string{"JOBTEST_TAKEBACKS=" + takeBacks(t)}, "take-back")
	for r, err := range j.wait() {
		if err != nil {
			t.Errorf("rank %d: %v: %s", r, err, j.output[r])
		}
	}
	t.Log(j.output[0])
}
