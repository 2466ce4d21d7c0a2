package ubcoll_test

import (
	"os"
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda/cudatest"
	"github.com/ubcoll/ubcoll/internal/env"
)

// What needs no devices runs without, so that it is the same everywhere.
func TestMain(m *testing.M) {
	os.Setenv("UBCOLL_EMULATE_DEVICES", "4")
	cudatest.Main(func() int {
		os.Setenv(env.CUDA.Name, "off")
		return m.Run()
	})
}
