package engine_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestQuarantineEndsWithTheDead has a peer die before it has closed a broken communicator: the next Free notices.
func TestQuarantineEndsWithTheDead(t *testing.T) {
	if race.Enabled {
		t.Skip("there the memory is the garbage collector's")
	}
	var killed, dead atomic.Bool
	comms := enginetest.OpenHooked(t, engine.Options{},
		enginetest.Hooks{Look: func() { dead.Store(killed.Load()) }, Live: func() {}, Dead: dead.Load})
	dups := make([]*engine.Comm, 2)
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
		dups[c.Rank()], err = c.Dup(background)
		return err
	})...))
	c := comms[1]
	free := func() {
		t.Helper()
		a, err := c.Alloc(hw.Host, 100)
		require.NoError(t, err)
		require.NoError(t, c.Free(a))
	}
	dups[1].Abort(errors.New("enough"))
	free()
	require.NoError(t, dups[1].Close())
	free()
	require.Equal(t, int64(2*shm.PageSize), c.Stats().Memory.HeldBytes)
	killed.Store(true)
	free()
	require.Zero(t, c.Stats().Memory.HeldBytes)
	require.NoError(t, dups[0].Close())
}
