package kernels

import (
	"testing"

	"github.com/ubcoll/ubcoll/hw/cuda/cudatest"
)

// TestMain has the tests of devices run over the emulated one where there is no other.
func TestMain(m *testing.M) { cudatest.Main(m.Run) }
