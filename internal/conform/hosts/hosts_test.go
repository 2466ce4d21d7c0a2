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

// suites are those of this folder, and those of others that work across hosts.
var suites = map[string]conform.Suite{"places": Places, "barriers": Barriers, "reduce": Reduce, "broadcast": Broadcast,
	"large": Large, "same bits": SameBits, "streams": Streams, "groups": Groups, "graphs": Graphs, "families": Families,
	"wrong": Wrong, "refused": Refused, "matrix": collectives.Matrix, "random": collectives.Random,
	"order": collectives.Order, "bad": collectives.Bad, "family": families.Family}

// run runs each of these suites in a job of its own.
func run(t *testing.T, l conform.Layout, names ...string) {
	for _, name := range names {
		t.Run(l.String()+"/"+name, func(t *testing.T) {
			t.Logf("TEST_SEED=%d", conform.Seed())
			defer testkit.NoLeaks(t)()
			require.NoError(t, l.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, suites[name]))
		})
	}
}

// TestOneHost runs this folder's suites on one host. The other folders' suites have tests there.
func TestOneHost(t *testing.T) {
	testkit.LongOrRace(t)
	run(t, conform.Block(3), "places", "barriers", "reduce", "broadcast", "large", "same bits", "streams", "groups", "graphs",
		"families", "wrong", "refused")
}

// layouts returns all layouts; in short runs and with the race detector, only the most orderly and the least orderly, and in
// daily runs the latter alone.
func layouts() []conform.Layout {
	all := conform.Layouts()
	if !testkit.Full() { // each of the sizes, and both orders; internal/conform/job has the others
		all = slices.DeleteFunc(all, func(l conform.Layout) bool {
			return slices.Contains([]string{"abab", "aaab", "aabbc"}, l.String())
		})
	}
	if race.Enabled || testing.Short() {
		all = []conform.Layout{all[0], all[len(all)-1]}
	}
	if testkit.Daily() {
		all = all[1:]
	}
	return all
}

// TestHosts runs everything that works across hosts, on hosts of all sizes. Long suites run on two layouts, and not at
// all with the race detector.
func TestHosts(t *testing.T) {
	long := []string{"matrix", "large"}
	for _, l := range layouts() {
		names := slices.Sorted(maps.Keys(suites))
		if s := l.String(); race.Enabled || testing.Short() || s != "abaa" && s != "abcab" {
			names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(long, name) })
		}
		run(t, l, testkit.Sample(5, names)...)
	}
}

// TestDevices: ranks with devices are refused what does not work between hosts, and can do it within each host.
func TestDevices(t *testing.T) {
	testkit.LongOrRace(t)
	t.Setenv(env.CUDA.Name, "auto")
	for _, l := range layouts() {
		t.Run(l.String(), func(t *testing.T) {
			gputest.Enough(t, l.Most())
			run(t, l, "refused")
		})
	}
}
