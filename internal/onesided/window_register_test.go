package onesided_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
)

// TestCloseWindowInTheMaking closes a window while its group runs: its memory must live until the group has ended, and
// must then be freed, whether the window was completed or not.
func TestCloseWindowInTheMaking(t *testing.T) {
	for _, k := range []struct {
		name string
		size int // of the other rank's part
		want error
	}{
		{"and it comes to be", 4096, nil},
		{"and it fails", 100, fault.ErrMismatch},
	} {
		t.Run(k.name, func(t *testing.T) {
			comms := enginetest.Open(t, 2, engine.Options{})
			vecs, wins := make([]team.Vec, 2), make([]*onesided.Window, 2)
			works := make([][]team.Work, 2)
			for r, c := range comms {
				a, err := c.Alloc(hw.Host, 4096)
				require.NoError(t, err)
				vecs[r] = team.Vec{Ptr: a.Ptr, Len: []int{4096, k.size}[r], Type: dtype.Uint8, Alloc: a}
				rec := &enginetest.Recorder{Room: 2}
				v := engine.View{Comm: c, Recorder: rec}
				wins[r], err = onesided.SpaceOf(v.Comm).RegisterWindow(background, &v, vecs[r], 0)
				require.NoError(t, err)
				works[r] = rec.Works()
			}
			s := engine.NewStream()
			require.NoError(t, (&engine.View{Comm: comms[0], Stream: s}).SubmitAll(background, "group", works[0], nil))
			enginetest.RequireWaiting(t, comms, 1, 1)
			before := comms[0].Stats().Memory.Allocations
			require.NoError(t, wins[0].Close())
			require.ErrorIs(t, wins[0].Close(), fault.ErrClosed)
			require.ErrorIs(t, comms[0].Free(vecs[0].Alloc), fault.ErrInUse)
			require.Equal(t, before, comms[0].Stats().Memory.Allocations)

			require.ErrorIs(t, (&engine.View{Comm: comms[1]}).SubmitAll(background, "group", works[1], nil), k.want)
			require.ErrorIs(t, s.Sync(background), k.want)
			require.NoError(t, s.Close())
			require.ErrorIs(t, wins[0].Close(), fault.ErrClosed)
			require.NoError(t, comms[0].Free(vecs[0].Alloc))
			if k.want == nil {
				require.ErrorIs(t, wins[1].Live(0), fault.ErrStale)
			}
			require.NoError(t, wins[1].Close())
			require.NoError(t, comms[1].Free(vecs[1].Alloc))
			require.Zero(t, comms[0].Stats().Failures)
		})
	}
}
