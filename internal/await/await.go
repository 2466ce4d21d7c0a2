// Package await is testkit's part for packages whose tests have not moved there yet.
package await

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Limit is testkit.Limit.
const Limit = testkit.Limit

// Main is testkit.Main.
func Main(m *testing.M) int { return testkit.Main(m) }

// NoLeaks is testkit.NoLeaks.
func NoLeaks(t testing.TB) (check func()) { return testkit.NoLeaks(t) }
