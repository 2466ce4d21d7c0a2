package onesided_test

import (
	"errors"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/onesided"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// stored stores b at p, and reports whether the store, rather than faulting, was made.
func stored(p unsafe.Pointer, b byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	*(*byte)(p) = b
	return true
}

// readOnlyWindows makes a read-only window of n bytes, from the second page of an allocation on, on two ranks.
func readOnlyWindows(t *testing.T, n int) (comms []*engine.Comm, vecs []team.Vec, wins []*onesided.Window) {
	const page = 4096
	comms = enginetest.Open(t, 2, engine.Options{})
	vecs, wins = make([]team.Vec, 2), make([]*onesided.Window, 2)
	for r, c := range comms {
		a, err := c.Alloc(hw.Host, 4*page)
		require.NoError(t, err)
		vecs[r] = team.Vec{Ptr: unsafe.Add(a.Ptr, page), Len: n, Type: dtype.Uint8, Alloc: a}
	}
	require.NoError(t, errors.Join(testkit.Each(comms, func(c *engine.Comm) (err error) {
		v := engine.View{Comm: c}
		wins[c.Rank()], err = onesided.SpaceOf(c).RegisterWindow(background, &v, vecs[c.Rank()], onesided.WindowReadOnly)
		return err
	})...))
	return comms, vecs, wins
}

// TestReadOnlyView checks that a view of a read-only window shows what its owner writes, that a store to its pages faults, and
// that it is unmapped when the window is closed and the last operation with it has ended.
func TestReadOnlyView(t *testing.T) {
	testkit.SkipRace(t) // memory is on the Go heap there
	const n = 5000      // two pages, the second of which is not full
	comms, vecs, wins := readOnlyWindows(t, n)
	v, err := wins[0].Peer(1)
	require.NoError(t, err)
	again, err := wins[0].Peer(1)
	require.NoError(t, err)
	require.Equal(t, v, again)
	theirs, mine := unsafe.Slice((*byte)(vecs[1].Ptr), n), unsafe.Slice((*byte)(v.Ptr), n)
	for i := range theirs {
		theirs[i] = byte(i)
	}
	require.Equal(t, theirs, mine)
	for _, at := range []int{0, n - 1, 8191} {
		require.False(t, stored(unsafe.Add(v.Ptr, at), 1), "offset %d", at)
	}
	require.True(t, stored(vecs[1].Ptr, 77))
	require.Equal(t, byte(77), mine[0])
	own, err := wins[0].Peer(0)
	require.NoError(t, err)
	require.True(t, stored(own.Ptr, 1), "one's own part")

	require.True(t, v.Alloc.Hold()) // as an operation does
	require.NoError(t, wins[0].Close())
	require.Equal(t, byte(77), mine[0], "unmapped under an operation")
	require.False(t, v.Alloc.Hold(), "an operation begins after Close")
	require.ErrorIs(t, v.Check(), fault.ErrStale)
	v.Alloc.Release()
	require.Panics(t, func() {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		_ = mine[0]
		t.Log("still mapped", mine[0])
	})
	require.NoError(t, wins[1].Close())
	require.NoError(t, errors.Join(comms[0].Free(vecs[0].Alloc), comms[1].Free(vecs[1].Alloc)))
}

// TestViewOfClosedPart checks that no view is made of a part that its owner has closed.
func TestViewOfClosedPart(t *testing.T) {
	_, _, wins := readOnlyWindows(t, 4096)
	require.NoError(t, wins[1].Close())
	_, err := wins[0].Peer(1)
	require.ErrorIs(t, err, fault.ErrStale)
	require.NoError(t, wins[0].Close())
}
