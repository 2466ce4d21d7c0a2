package emulated

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/env"
)

// Primary returns the primary context of device i, and closes it when the test ends. It skips the test if there is no
// such device, real or emulated.
func Primary(t testing.TB, i int) *cuda.Context {
	t.Helper()
	if p := cuda.Have(); p.Err != nil {
		t.Skip(p)
	}
	all, err := cuda.Devices()
	require.NoError(t, err)
	if i >= len(all) {
		t.Skipf("%d devices, and %d wanted", len(all), i+1)
	}
	ctx, err := cuda.Primary(hw.CUDA(i))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	return ctx
}

// Stream returns a new stream of ctx, and closes it when the test ends.
func Stream(t testing.TB, ctx *cuda.Context) *cuda.Stream {
	t.Helper()
	s, err := ctx.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// Only skips a test, on a real device, of something that a real driver cannot be made to do.
func Only(t testing.TB) {
	t.Helper()
	if !Active() {
		t.Skip("this cannot be made to happen on a real device")
	}
}

// Count returns how many objects of virtual memory management this process has in the emulated driver, by kind:
// "handles" of memory and multicast objects, ranges "mapped" and "reserved", references to "multicast" objects, and
// what is "bound" to those. It skips the test on a real device, which does not tell.
func Count(t testing.TB) map[string]int {
	t.Helper()
	Only(t)
	return CountOf(t)
}

// CountOf is Count for a process that has the emulated driver without Main.
func CountOf(t testing.TB) map[string]int {
	t.Helper()
	name := filepath.Join(t.TempDir(), "count")
	old, was := os.LookupEnv(counting)
	require.NoError(t, os.Setenv(counting, name))
	_, err := cuda.Inspect(0)
	if was {
		os.Setenv(counting, old)
	} else {
		os.Unsetenv(counting)
	}
	require.NoError(t, err)
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	all := map[string]int{}
	for line := range strings.Lines(string(b)) {
		var kind string
		var n int
		_, err := fmt.Sscan(line, &kind, &n)
		require.NoError(t, err)
		all[kind] = n
	}
	return all
}

const counting = "UBCOLL_EMULATE_COUNT"

// NVLS sets UBCOLL_NVLS=on for the test. Nothing else in the tests may: on a real device it skips the test, whatever the
// build and the environment.
func NVLS(t *testing.T) {
	t.Helper()
	Only(t)
	all, err := cuda.Devices()
	require.NoError(t, err)
	for _, d := range all {
		require.Contains(t, d.Name, "Emulated GPU")
	}
	t.Setenv(env.NVLS.Name, "on")
}

// Used returns how many bytes of the device's memory this process uses. Only the emulated driver knows; else it is 0.
func Used(t testing.TB, ctx *cuda.Context) int {
	t.Helper()
	if !Active() {
		return 0
	}
	free, total, err := ctx.Available()
	require.NoError(t, err)
	return total - free
}
