package emulated

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
)

// Primary is the primary context of device i, which the test needs and which is closed at its end. Without that device,
// real or emulated, the test is skipped.
func Primary(t testing.TB, i int) *cuda.Context {
	t.Helper()
	if p := cuda.Have(); p.Err != nil {
		t.Skip(p)
	}
	all, err := cuda.Devices()
	require.NoError(t, err)
	if i >= len(all) {
		t.Skipf("there are only %d devices", len(all))
	}
	ctx, err := cuda.Primary(hw.CUDA(i))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	return ctx
}
