package hosts

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/collectives"
	"github.com/ubcoll/ubcoll/internal/conform/families"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestMain(m *testing.M) { gputest.Main(5, func() int { return testkit.Main(m) }) }

// suites are those of this folder, and of others what crosses hosts.
var suites = map[string]conform.Suite{"places": Places, "barriers": Barriers, "reduce": Reduce, "broadcast": Broadcast,
	"large": Large, "same bits": SameBits, "streams": Streams, "groups": Groups, "graphs": Graphs, "families": Families,
	"wrong": Wrong, "refused": Refused, "matrix": collectives.Matrix, "random": collectives.Random,
	"order": collectives.Order, "bad": collectives.Bad, "family": families.Family}

func run(t *testing.T, l conform.Layout, names ...string) {
	t.Run(l.String(), func(t *testing.T) {
		t.Logf("TEST_SEED=%d", conform.Seed())
		defer testkit.NoLeaks(t)()
		require.NoError(t, l.Run(t.Context(), ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
			for _, name := range names {
				start := time.Now()
				if err := conform.Each(ctx, c, suites[name]); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if c.Rank() == 0 {
					t.Logf("%s: %v", name, time.Since(start).Round(time.Millisecond))
				}
			}
			return nil
		}))
	})
}

// TestOneHost is what the suites are on one host; those of other folders have tests there.
func TestOneHost(t *testing.T) {
	run(t, conform.Block(3), "places", "barriers", "reduce", "broadcast", "large", "same bits", "streams", "groups", "graphs",
		"families", "wrong", "refused")
}

// connected is whether Open connects hosts.
const connected = false

// TestHosts is all that crosses hosts, on hosts of all sizes.
func TestHosts(t *testing.T) {
	if !connected {
		t.Skip("Open does not connect hosts yet")
	}
	t.Setenv(env.CUDA.Name, "auto")
	for _, l := range conform.Layouts() {
		run(t, l, slices.Sorted(maps.Keys(suites))...)
	}
}
