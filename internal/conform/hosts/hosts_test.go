package hosts

import (
	"cmp"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/conform/families"
	"github.com/ubcoll/ubcoll/internal/conform/messages"
	"github.com/ubcoll/ubcoll/internal/conform/onesided"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(5, func() int { return testkit.Main(m) }) }

// run runs each of these suites in a job of its own.
func run(t *testing.T, l conform.Layout, suites ...named) { runTurns(t, l, 0, 1, suites...) }

// runTurns runs those of the suites whose turn it is, and always the first if first is 0.
func runTurns(t *testing.T, l conform.Layout, first, of int, suites ...named) {
	for i, s := range suites {
		t.Run(l.String()+"/"+s.name, func(t *testing.T) {
			testkit.Turn(t, first+i, of)
			t.Logf("TEST_SEED=%d", conform.Seed())
			defer testkit.NoLeaks(t)()
			require.NoError(t, l.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, s.run))
		})
	}
}

// TestOneHost runs this folder's suites on one host. The other folders' suites have tests there.
func TestOneHost(t *testing.T) {
	testkit.LongOrRace(t)
	runTurns(t, conform.Block(3), 0, 3, suites...)
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

// TestHosts runs everything that works across hosts, this folder's suites and others', on hosts of all sizes. Long suites
// run on two layouts, and not at all with the race detector. The suites take turns, but for programs on the least orderly
// layout: they are random, of everything.
func TestHosts(t *testing.T) {
	if !testkit.Full() {
		t.Setenv("CONFORM_ATOMICS", "100") // between ranks that share processors each takes long
	}
	all := append(slices.Clone(suites), named{"matrix", collectives.Matrix}, named{"random", collectives.Random},
		named{"moves", collectives.Moves}, named{"order", collectives.Order}, named{"bad", collectives.Bad},
		named{"imports", collectives.Imports}, named{"family", families.Family},
		named{"p2p", messages.P2P}, named{"programs", messages.Programs}, named{"handles", onesided.Handles},
		named{"channels", onesided.Channels}, named{"windows", onesided.Windows}, named{"access", onesided.Access},
		named{"atomics", onesided.Atomics}, named{"sums", onesided.Sums},
		named{"progress", onesided.Progress})
	slices.SortFunc(all, func(a, b named) int { return cmp.Compare(a.name, b.name) }) // a sample has some of both
	least := conform.Layouts()[len(conform.Layouts())-1].String()
	for k, l := range layouts() {
		some := all
		if s := l.String(); race.Enabled || testing.Short() || s != "abaa" && s != "abcab" {
			some = slices.DeleteFunc(slices.Clone(all), func(s named) bool { return s.name == "matrix" || s.name == "large" })
		}
		if l.String() != "abaa" && !testkit.Full() { // between hosts it takes long; blocks has the same operations
			some = slices.DeleteFunc(slices.Clone(some), func(s named) bool { return s.name == "moves" })
		}
		if l.String() != "aabb" && !testkit.Full() { // two ranks of the owner's host, and two of another
			some = slices.DeleteFunc(slices.Clone(some), func(s named) bool { return s.name == "sums" })
		}
		if testkit.Daily() {
			some = testkit.Sample(5, some)
		}
		first := k + 1
		if os.Getenv(env.IB.Name) == "on" {
			first++ // another part than over TCP
		}
		if l.String() == least {
			programs := slices.IndexFunc(some, func(s named) bool { return s.name == "programs" })
			if programs >= 0 {
				some = append([]named{some[programs]}, slices.Delete(slices.Clone(some), programs, programs+1)...)
				first = 0
			}
		}
		runTurns(t, l, first, 3, some...)
	}
}

// TestDevices: ranks with devices are refused what does not work between hosts, and can do it within each host.
func TestDevices(t *testing.T) {
	testkit.LongOrRace(t)
	t.Setenv(env.CUDA.Name, "auto")
	for _, l := range layouts() {
		t.Run(l.String(), func(t *testing.T) {
			gputest.Enough(t, l.Most())
			run(t, l, named{"refused", Refused})
		})
	}
}
