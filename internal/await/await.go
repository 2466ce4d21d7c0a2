// Package await is how tests wait: for what is to come, and long enough that a machine whose processors are busy with
// something else fails no test. A test that passes waits no longer than it takes.
package await

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Limit is how long a test waits for what comes soon, before it takes it for something that never comes.
const Limit = 2 * time.Minute

// Main runs m's tests, and then fails if goroutines stay behind. Its result is for os.Exit.
func Main(m *testing.M) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	if err := leaks(); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines stay behind:", err)
		return 1
	}
	return 0
}

// NoLeaks fails t if goroutines stay behind of what it does between this call and that of the result.
func NoLeaks(t testing.TB) (check func()) {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		if err := leaks(before); err != nil {
			t.Error("goroutines stay behind:", err)
		}
	}
}

// leaks is about goroutines that do not end, which take their time to.
func leaks(options ...goleak.Option) error {
	for start := time.Now(); ; {
		err := goleak.Find(options...)
		if err == nil || time.Since(start) > Limit/4 {
			return err
		}
	}
}
