package gpumail

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
)

// unheld is a peer that notes which of its extents are not held any more.
type unheld struct {
	engine.DevicePeer
	extents []uint32
}

func (u *unheld) Unhold(extent uint32) error {
	u.extents = append(u.extents, extent)
	return nil
}

// What a graph holds of its peers' memory ends with the graph. All of it waits for the last launch, whose mark is used once
// for each hold, and can then be used again.
func TestHoldsOfAGraphEnd(t *testing.T) {
	for n := range 4 {
		for _, launched := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d holds, launched %v", n, launched), func(t *testing.T) {
				m := newMessages(2, &gpu.Device{Room: gpu.RoomOf(132, 2)})
				m.gone = true // then no launch is under way
				u, g := &unheld{}, &graphPart{m: m}
				var want []uint32
				for i := range n {
					g.holds = append(g.holds, hold{peer: u, extent: uint32(i)})
					want = append(want, uint32(i))
				}
				k := &mark{users: 1}
				if launched && n > 0 { // without holds a launch leaves no mark
					g.after = k
				}
				require.NoError(t, g.Close())
				require.Equal(t, want, u.extents)
				require.Empty(t, m.holds)
				if launched && n > 0 {
					require.Zero(t, k.users)
					require.Equal(t, []*mark{k}, m.free)
				}
				require.NoError(t, m.release(true))
				require.Equal(t, want, u.extents, "once")
			})
		}
	}
}
