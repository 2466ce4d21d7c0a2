//go:build linux && cgo && (amd64 || arm64)

package cuda_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
)

// TestEmulated runs this package's tests of a GPU on the emulated driver, in another process. The emulated driver must
// behave as these tests found real ones to do.
func TestEmulated(t *testing.T) {
	if os.Getenv("UBCOLL_TEST_LIBRARY") != "" {
		t.Skip("this is that process")
	}
	lib := filepath.Join(emulated.Library(t), "libcuda.so.1")
	skip := strings.Join([]string{
		"TestEmulated", "TestFake", "TestMulticastFake", "TestProbe", "TestParity", "TestAbsent", // about no GPU, or an absent one
		"TestModuleErrors/instruction", // the emulated driver does not read PTX
	}, "|")
	out := other(t, lib, []string{"UBCOLL_REQUIRE=cuda", "UBCOLL_EMULATE_DEVICES=8"}, "-test.run=^Test", "-test.skip="+skip, "-test.v")
	require.NotContains(t, out, "--- SKIP")
	for _, name := range []string{"TestGraph", "TestTwoDevices/ipc_in_another_process", "TestNoLeaks", "TestBrokenContext"} {
		require.Contains(t, out, "--- PASS: "+name)
	}
}
