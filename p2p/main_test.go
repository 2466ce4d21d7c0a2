package p2p_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda/cudatest"
	"github.com/ubcoll/ubcoll/internal/await"
	"github.com/ubcoll/ubcoll/internal/env"
)

// The tests of host memory run without devices, so that they are the same everywhere.
func TestMain(m *testing.M) {
	os.Setenv("UBCOLL_EMULATE_DEVICES", "8")
	cudatest.Main(func() int {
		os.Setenv(env.CUDA.Name, "off")
		return await.Main(m)
	})
}
