package testkit

import (
	"testing"

	"github.com/ubcoll/ubcoll/internal/env"
)

// Missing ends a test that cannot run here; why is the reason. It skips the test, or fails it if UBCOLL_REQUIRE lists
// what.
func Missing(t testing.TB, what string, why any) {
	t.Helper()
	if env.Requires(what) {
		t.Fatalf("%s lists %s: %v", env.Require.Name, what, why)
	}
	t.Skip(why)
}
