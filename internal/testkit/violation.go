package testkit

import (
	"fmt"
	"strings"
	"testing"
)

// Violation fails t unless f panics with a violated invariant, whose text has part in it: for tests with -tags
// invariants.
func Violation(t testing.TB, part string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if said := fmt.Sprint(recover()); !strings.HasPrefix(said, "invariant violated: ") || !strings.Contains(said, part) {
			t.Errorf("no violation with %q: %s", part, said)
		}
	}()
	f()
}
