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

// The parts of an area lie one behind the other, with room for all that they have.
func TestPartsOfAnArea(t *testing.T) {
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for name, l := range map[string]Layout{"first": First(ranks), "small": Small(ranks)} {
			steps := 2
			if ranks == 2 {
				steps = 1
			}
			at := l.packets()
			for _, part := range []struct {
				name        string
				begin, size int
			}{
				{"packets, for each parity", l.packets(), 2 * (ranks - 1) * l.Row},
				{"four staging buffers", l.staging(), 4 * l.Little},
				{"boxes", l.Boxes(), ranks * boxBytes},
				{"FIFOs of the other ranks", l.FIFO(1), (ranks - 1) * l.Slots * l.Slot},
				{"channels", l.Channel(0), l.Channels * ChannelBytes},
				{"lines, for each parity and step", l.lines(), 2 * steps * (ranks - 1) * l.LineRow},
				{"the end", l.Bytes(), 0},
			} {
				require.GreaterOrEqual(t, part.begin, at, "%s, %d ranks: %s", name, ranks, part.name)
				at = part.begin + part.size
			}
		}
	}
}
