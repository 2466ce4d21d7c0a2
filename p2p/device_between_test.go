package p2p_test

import (
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDeviceBetweenSizes sends messages of device memory of all sizes around ranks of several hosts.
func TestDeviceBetweenSizes(t *testing.T) {
	for i, hosts := range []string{"ab", "aab", "abc"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			gputest.Across(t, hosts, ubcoll.Options{}, messagesAround)
		})
	}
}

// TestDeviceBetweenRandom runs random programs of messages of device memory between hosts, and within one beside them.
func TestDeviceBetweenRandom(t *testing.T) {
	seed := testkit.Seed(t)
	for i, hosts := range []string{"ab", "aabb", "abc", "abab", "aab"} {
		t.Run(hosts, func(t *testing.T) {
			testkit.Turn(t, i, 3)
			gputest.Across(t, hosts, ubcoll.Options{}, randomMessages(seed, testkit.Often(40)))
		})
	}
}
