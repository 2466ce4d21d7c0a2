package mixed_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/conform/mixed"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/register"
)

func TestMain(m *testing.M) { gputest.Main(4, func() int { return testkit.Main(m) }) }

// TestDevicePrograms runs random programs on the devices of goroutine ranks: 2000 in full runs, or CONFORM_PROGRAMS for
// each seed. TEST_SEED repeats a run.
func TestDevicePrograms(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("the tests of coll and p2p have what is instrumented")
	}
	programs, err := conform.Number("CONFORM_PROGRAMS", testkit.Often(1000))
	require.NoError(t, err)
	options := []ubcoll.Options{{}, {Register: register.Explicit}, {Algorithm: "ring"}, {Register: register.Off},
		{Algorithm: "two-shot"}, {Algorithm: "one-shot"}, {Algorithm: "push"}}
	ranks := []int{2, 3, 4}
	each := (programs + len(ranks)*len(options) - 1) / (len(ranks) * len(options))
	for _, seed := range testkit.Seeds(t) {
		for k := range len(ranks) * len(options) {
			n, o := ranks[k/len(options)], options[k%len(options)]
			t.Run(fmt.Sprintf("ranks=%d/%v/%s", n, o.Register, o.Algorithm), func(t *testing.T) {
				gputest.Run(t, n, o, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
					return mixed.DevicePrograms(seed+uint64(k), each)(ctx, c)
				})
			})
		}
	}
}

// TestDeviceHostsPrograms runs random programs on the devices of goroutine ranks that claim to be on several hosts: 500 in full
// runs, or CONFORM_PROGRAMS for each seed. TEST_SEED repeats a run.
func TestDeviceHostsPrograms(t *testing.T) {
	if race.Enabled {
		t.Skip("the tests of coll and p2p have what is instrumented")
	}
	programs, err := conform.Number("CONFORM_PROGRAMS", testkit.Often(500))
	require.NoError(t, err)
	options := []ubcoll.Options{{}, {Register: register.Explicit}, {Algorithm: "ring"}, {Algorithm: "chain"}, {Register: register.Off}}
	layouts := []string{"ab", "aabb", "abc", "abab", "aab"}
	each := max(programs/(len(layouts)*len(options)), 1)
	for _, seed := range testkit.Seeds(t) {
		for k := range len(layouts) * len(options) {
			hosts, o := layouts[k%len(layouts)], options[k/len(layouts)]
			t.Run(fmt.Sprintf("%s/%v/%s/seed=%d", hosts, o.Register, o.Algorithm, seed+uint64(k)), func(t *testing.T) {
				if gputest.Sharers(t, len(hosts)) > 3 {
					t.Skip("one device has no room for what four ranks of a process split off")
				}
				gputest.Across(t, hosts, o, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
					return mixed.DevicePrograms(seed+uint64(k), each)(ctx, c)
				})
			})
		}
	}
}
