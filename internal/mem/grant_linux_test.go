package mem_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/mem"
)

func TestGrant(t *testing.T) {
	for _, goHeap := range []bool{false, true} {
		h, err := mem.New(77, goHeap)
		require.NoError(t, err)
		dir := h.Directory()
		a, err := h.Alloc(100)
		require.NoError(t, err)
		g, err := h.Grant()
		require.NoError(t, err)
		require.True(t, dir.Live(g))
		require.True(t, dir.Live(a.At))
		require.NotEqual(t, a.At.Slot, g.Slot)
		require.NotEqual(t, a.At.Generation, g.Generation)
		h.Revoke(g)
		require.False(t, dir.Live(g))
		h.Revoke(g) // does nothing
		next, err := h.Grant()
		require.NoError(t, err)
		require.Equal(t, g.Slot, next.Slot)
		require.Greater(t, next.Generation, g.Generation)
		h.Revoke(g) // must not revoke the grant that has the slot now
		require.True(t, dir.Live(next))
		require.Equal(t, 1, h.Stats().Allocations)
		require.NoError(t, h.Close())
		_, err = h.Grant()
		require.ErrorIs(t, err, fault.ErrClosed)
		h.Revoke(next)
	}
}
