package kernels

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
)

// TestMain has the tests of devices run over the emulated one where there is no other.
func TestMain(m *testing.M) { emulated.Main(m.Run) }
