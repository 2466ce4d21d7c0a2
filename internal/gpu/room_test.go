package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is launched early waits on the device beside the kernel before it. Where that fills what collectives have, it
// would wait in the room of messages, which the kernel before it may be waiting for by way of a peer.
func TestRoomForEarlyKernels(t *testing.T) {
	room := RoomOf(132, 2)
	large, small := int32(RoomBlocks*room.Collectives), int32(64)
	s := &Stream{}
	for i, k := range []struct {
		takes int32
		early bool
	}{{large, true}, {small, false}, {small, true}, {small, true}, {large, false}, {0, true}, {small, true}, {large / 2, true},
		{large/2 + 1, false}, {1, true}} {
		before := s.taken.Load()
		require.Equal(t, k.early, s.Follows(k.takes, room.Collectives), "kernel %d", i)
		if k.early {
			require.LessOrEqual(t, int(before+k.takes)+room.Messages+room.Channels, RoomBlocks*132, "kernel %d", i)
		}
	}
}
