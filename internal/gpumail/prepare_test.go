package gpumail

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/mem"
)

// Messages hold their memory only if all of them can start: also if one finds that its memory is being freed only after it
// has held that.
func TestPrepareFails(t *testing.T) {
	const n = kernels.EagerBytes + 1
	h, err := mem.New(1, true)
	require.NoError(t, err)
	var as [3]*mem.Allocation
	for i := range as {
		as[i], err = h.Alloc(n)
		require.NoError(t, err)
	}
	m := newMessages(2, &gpu.Device{})
	m.c = new(engine.Comm)
	prepare := func(recv bool) error {
		ms := []Message{message(1, false, n, 0), message(1, recv, n, 0), message(1, false, n, 0)}
		for i := range ms {
			ms[i].Vec.Alloc = as[i]
		}
		held, err := m.prepare(ms, false)
		unprepare(ms, held)
		return err
	}
	holders := func() (n int) {
		for _, a := range as {
			n += a.Holders()
		}
		return n
	}
	require.NoError(t, prepare(false))
	require.Zero(t, holders())
	require.NoError(t, as[1].Leave(func() error { return nil })) // whoever frees it has got this far
	require.ErrorIs(t, prepare(true), fault.ErrStale)
	require.Zero(t, holders())
	as[1].WhenIdle(func() {})
	require.ErrorIs(t, prepare(true), fault.ErrStale)
	require.Zero(t, holders())
	require.NoError(t, h.Close()) // would wait for holders
}
