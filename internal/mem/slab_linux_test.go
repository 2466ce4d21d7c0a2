package mem

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
)

// Parts share the driver's allocation, which is freed with the last of them. No place in it is reused.
func TestDeviceParts(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	emulated.Only(t)
	grain, err := ctx.Granularity()
	require.NoError(t, err)
	modes(t, func(t *testing.T, goHeap bool) {
		before := emulated.Used(t, ctx)
		h := deviceHeap(t, ctx, goHeap)
		grains := func() int {
			used := emulated.Used(t, ctx) - before
			require.EqualValues(t, used, h.Stats().OwnBytes)
			return used / grain
		}
		part := func(n int) *Allocation {
			a, err := h.AllocDevicePart(n)
			require.NoError(t, err)
			require.Equal(t, n, a.Bytes)
			require.Zero(t, a.Base()%partGrain)
			require.Same(t, a, h.Lookup(a.Base(), n))
			m, err := a.Inspect()
			require.NoError(t, err)
			require.LessOrEqual(t, a.Base()+uintptr(n), uintptr(m.Base)+uintptr(m.Size))
			require.Equal(t, strings.Repeat("\x00", n), contents(t, ctx, a, n))
			return a
		}
		require.NoError(t, h.ReserveDevice(3*grain-100))
		require.Equal(t, 3, grains())
		first, second := part(3*grain/2), part(grain)
		require.Equal(t, 3, grains(), "what was reserved is used")
		third := part(grain / 2)
		require.Equal(t, first.Base()+uintptr(5*grain/2), third.Base())
		require.Equal(t, 3, grains())
		s, err := ctx.NewStream()
		require.NoError(t, err)
		require.NoError(t, s.Fill(cuda.Addr(second.Base()), 0xa5, grain))
		require.NoError(t, s.Sync())
		require.NoError(t, s.Close())
		require.NoError(t, h.Retire(second))
		fourth := part(grain)
		require.Equal(t, 4, grains(), "a place is not used again")
		fifth := part(1)
		require.Equal(t, 5, grains())
		big := part(2 * grain)
		require.Equal(t, 7, grains())
		sixth := part(4097)
		require.Equal(t, fifth.Base()+partGrain, sixth.Base(), "what has most room is used first")
		for _, a := range []*Allocation{first, third} {
			require.NoError(t, h.Retire(a))
		}
		require.Equal(t, 4, grains(), "the last one takes all with it")
		require.ErrorIs(t, h.Retire(third), fault.ErrClosed)
		for _, a := range []*Allocation{fifth, sixth, fourth, big} {
			require.NoError(t, h.Retire(a))
		}
		require.Zero(t, grains())
		part(10) // Close frees what is left
		require.NoError(t, h.Close())
		require.Equal(t, before, emulated.Used(t, ctx))
		_, err = h.AllocDevicePart(1)
		require.ErrorIs(t, err, fault.ErrClosed)
		require.ErrorIs(t, h.ReserveDevice(1), fault.ErrClosed)
	})
}

func TestOutOfDeviceMemoryForParts(t *testing.T) {
	ctx := emulated.Primary(t, 0)
	emulated.Only(t)
	h := deviceHeap(t, ctx, false)
	_, err := h.AllocDevicePart(0)
	require.ErrorIs(t, err, fault.ErrArgument)
	calls := []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
		"cuMemsetD8Async"}
	failing(t, ctx, calls, func() error {
		a, err := h.AllocDevicePart(3 << 20)
		if err != nil {
			return err
		}
		return h.Retire(a)
	})
	require.NoError(t, h.Close())
}
