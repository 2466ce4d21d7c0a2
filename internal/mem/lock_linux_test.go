package mem

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Memory stays locked until each Lock has its Unlock, and its neighbour's Unlock leaves it locked.
func TestLocksCount(t *testing.T) {
	h := newHeap(t, false)
	a, b := alloc(t, h, 100), alloc(t, h, 100)
	before := testkit.Status("VmLck")
	locked := func(pages int) {
		t.Helper()
		require.Equal(t, pages*shm.PageSize, testkit.Status("VmLck")-before)
	}
	require.NoError(t, a.Lock())
	require.NoError(t, a.Lock())
	locked(1)
	require.NoError(t, b.Lock())
	locked(2)
	require.NoError(t, a.Unlock())
	locked(2)
	require.NoError(t, b.Unlock())
	locked(1)
	require.NoError(t, a.Unlock())
	locked(0)
	require.NoError(t, a.Lock())
	locked(1)
	require.NoError(t, h.Retire(a))
	locked(0)
	require.NoError(t, h.Retire(b))
}
