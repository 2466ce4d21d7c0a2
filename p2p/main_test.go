package p2p_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/ubcoll/ubcoll/hw/cuda/cudatest"
	"github.com/ubcoll/ubcoll/internal/env"
)

// The tests of host memory run without devices, so that they are the same everywhere.
func TestMain(m *testing.M) {
	os.Setenv("UBCOLL_EMULATE_DEVICES", "8")
	cudatest.Main(func() int {
		os.Setenv(env.CUDA.Name, "off")
		goleak.VerifyTestMain(m)
		return 0
	})
}
