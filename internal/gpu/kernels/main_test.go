package kernels

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
)

// TestMain runs the tests of devices on the emulated one if there is no other.
func TestMain(m *testing.M) { emulated.Main(m.Run) }
