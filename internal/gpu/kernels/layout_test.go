package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// However many ranks there are, a communicator has room for two windows, each of which takes an end for every rank.
func TestRoomForWindows(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for name, l := range map[string]Layout{"first": First(ranks), "small": Small(ranks)} {
			require.GreaterOrEqual(t, l.Channels, 2*ranks, "%s, %d ranks", name, ranks)
			require.LessOrEqual(t, l.Channels, MaxChannels, "%s, %d ranks", name, ranks)
		}
	}
}
