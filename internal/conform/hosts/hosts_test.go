package hosts

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/conform/families"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(5, func() int { return testkit.Main(m) }) }

// suites are those of this folder, and of others what crosses hosts.
var suites = map[string]conform.Suite{"places": Places, "barriers": Barriers, "reduce": Reduce, "broadcast": Broadcast,
	"large": Large, "same bits": SameBits, "streams": Streams, "groups": Groups, "graphs": Graphs, "families": Families,
	"wrong": Wrong, "refused": Refused, "matrix": collectives.Matrix, "random": collectives.Random,
	"order": collectives.Order, "bad": collectives.Bad, "family": families.Family}

// run runs suites, each in a job of its own.
func run(t *testing.T, l conform.Layout, names ...string) {
	for _, name := range names {
		t.Run(l.String()+"/"+name, func(t *testing.T) {
			t.Logf("TEST_SEED=%d", conform.Seed())
			defer testkit.NoLeaks(t)()
			require.NoError(t, l.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, suites[name]))
		})
	}
}

// TestOneHost is what the suites are on one host; those of other folders have tests there.
func TestOneHost(t *testing.T) {
	run(t, conform.Block(3), "places", "barriers", "reduce", "broadcast", "large", "same bits", "streams", "groups", "graphs",
		"families", "wrong", "refused")
}

// layouts are all of them, and the most and the least orderly one in short runs and with the race detector.
func layouts() []conform.Layout {
	all := conform.Layouts()
	if race.Enabled || testing.Short() {
		all = []conform.Layout{all[0], all[len(all)-1]}
	}
	return all
}

// TestHosts is all that crosses hosts, on hosts of all sizes. What takes long is done on two of them, and not at all with
// the race detector.
func TestHosts(t *testing.T) {
	long := []string{"matrix", "large"}
	for _, l := range layouts() {
		names := slices.Sorted(maps.Keys(suites))
		if s := l.String(); race.Enabled || testing.Short() || s != "aaab" && s != "abcab" {
			names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(long, name) })
		}
		run(t, l, names...)
	}
}

// TestDevices is what ranks with devices do not do between hosts, and that they do it on each.
func TestDevices(t *testing.T) {
	t.Setenv(env.CUDA.Name, "auto")
	for _, l := range layouts() {
		t.Run(l.String(), func(t *testing.T) {
			gputest.Enough(t, l.Most())
			run(t, l, "refused")
		})
	}
}
