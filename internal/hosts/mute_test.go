package hosts

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/transport"
)

// Who finds that a peer has ended its side in order waits a while for the reason, and for no other end.
func TestMute(t *testing.T) {
	for kind := transport.Died; kind <= transport.Unreached; kind++ {
		var m mute
		waits := kind == transport.Left || kind == transport.Refused
		require.Equal(t, waits, m.just(&transport.Down{Kind: kind}), kind)
		require.Equal(t, waits, m.just(&transport.Down{Kind: kind}), kind)
		m.Store(time.Now().Add(-wordOfEnd).UnixNano())
		require.False(t, m.just(&transport.Down{Kind: kind}), kind)
	}
}
