package main

import (
	"os"
	"strconv"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// rounds is how often something is done: the variable's value (10,000, say, for one long run), or testkit.Often(full).
func rounds(t *testing.T, variable string, full int) string {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		s = strconv.Itoa(testkit.Often(full))
	}
	t.Logf("%s=%s TEST_SEED=%d", variable, s, conform.Seed())
	return s
}

func TestTakeBackLocal(t *testing.T) {
	if race.Enabled {
		t.Skip("its puts meet in the same bytes, in no order")
	}
	t.Setenv("CONFORM_TAKEBACKS", rounds(t, "CONFORM_TAKEBACKS", 400))
	local(t, 2, ubcoll.Options{}, "take-back")
}

func TestTakeBackProcesses(t *testing.T) {
	start(t, 2, []string{"CONFORM_TAKEBACKS=" + rounds(t, "CONFORM_TAKEBACKS", 400)}, "take-back").succeed(t)
}

func TestRoundsLocal(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector's own memory grows")
	}
	t.Setenv("CONFORM_ROUNDS", rounds(t, "CONFORM_ROUNDS", 400))
	local(t, 3, ubcoll.Options{}, "rounds")
}

func TestRoundsProcesses(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector's own memory grows")
	}
	start(t, 3, []string{"CONFORM_ROUNDS=" + rounds(t, "CONFORM_ROUNDS", 400)}, "rounds").succeed(t)
}
