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

// Only skips a test of what a real driver cannot be made to do.
func Only(t testing.TB) {
	t.Helper()
	if !Active() {
		t.Skip("this cannot be made to happen on a real device")
	}
}

// Used is how much of the device's memory this process takes. Only the emulated driver can tell.
func Used(t testing.TB, ctx *cuda.Context) int {
	t.Helper()
	if !Active() {
		return 0
	}
	free, total, err := ctx.Available()
	require.NoError(t, err)
	return total - free
}
