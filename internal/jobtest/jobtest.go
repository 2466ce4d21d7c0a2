// Package jobtest has the suites that every rank of a job runs, whatever started it: goroutines of a test, processes
// with nothing but their environment, or mpirun. The program in its folder job runs them by name.
package jobtest

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"

	"github.com/ubcoll/ubcoll"
)

// Suite is what one rank does. All ranks run the same one.
type Suite func(ctx context.Context, c *ubcoll.Comm) error

// Suites are the suites by name.
var Suites = map[string]Suite{
	"matrix":          Matrix,
	"random":          Random,
	"bad":             Bad,
	"order":           Order,
	"moves":           Moves,
	"churn":           Churn,
	"descriptors":     Descriptors,
	"imports":         Imports,
	"kill":            Kill,
	"steady":          Steady,
	"steady-small":    SteadySmall,
	"pauses":          Pauses,
	"first-use":       FirstUse,
	"exit-early":      ExitEarly,
	"ends-wait":       EndsWait,
	"ends-swallow":    EndsSwallow,
	"ends-plain":      EndsPlain,
	"ends-ignore":     EndsIgnore,
	"ends-panic":      EndsPanic,
	"ends-error":      EndsError,
	"kill-p2p":        KillP2P,
	"p2p":             P2P,
	"circle":          Circle,
	"programs":        Programs,
	"mixed":           Mixed,
	"family":          Family,
	"handles":         Handles,
	"channels":        Channels,
	"windows":         Windows,
	"kill-wait":       KillWait,
	"take-back":       TakeBack,
	"rounds":          Rounds,
	"device":          Device,
	"kill-device":     KillDevice,
	"kill-device-p2p": KillDeviceP2P,

	"kill-queued-eager":    KillQueuedEager,
	"kill-queued-graph":    KillQueuedGraph,
	"kill-queued-messages": KillQueuedMessages,
	"kill-queued-channel":  KillQueuedChannel,
}

// Names lists the suites.
func Names() []string {
	var names []string
	for n := range Suites {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Seed is the seed of everything random, the same on all ranks: TEST_SEED, or 1, so that runs repeat. Logged with every
// failure by fail.
func Seed() uint64 {
	s, err := strconv.ParseUint(os.Getenv("TEST_SEED"), 10, 64)
	if err != nil {
		return 1
	}
	return s
}

// number is how often something is done: what the variable says, or n.
func number(variable string, n int) (int, error) {
	s := os.Getenv(variable)
	if s == "" {
		return n, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", variable, err)
	}
	return n, nil
}

func fail(c *ubcoll.Comm, format string, args ...any) error {
	return fmt.Errorf("rank %d of %d, seed %d: %w", c.Rank(), c.Size(), Seed(), fmt.Errorf(format, args...))
}
