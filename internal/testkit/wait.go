// Package testkit is what tests of several packages need: how they wait, for what is to come, and long enough that a
// machine whose processors are busy with something else fails no test (one that passes waits no longer than it takes);
// seeds; the test program as another process; logs; what the kernel says of this process. Ranks on devices are for
// gputest.
package testkit

import (
	"fmt"
	"testing"
	"time"
)

// Limit is how long a test waits for what comes soon, before it takes it for something that never comes.
const Limit = 2 * time.Minute

// Until waits until done says that it is done, Limit at most, and returns what it says.
func Until(done func() bool) bool { return UntilFor(Limit, done) }

// UntilFor is Until with a limit of its own.
func UntilFor(limit time.Duration, done func() bool) bool {
	for begin := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > limit {
			return false
		}
	}
	return true
}

// Eventually fails t at once unless done is true before long. What it says of that is a format with its arguments, which
// are pointers if they change meanwhile.
func Eventually(t testing.TB, done func() bool, message ...any) {
	t.Helper()
	if Until(done) {
		return
	}
	if len(message) == 0 {
		t.Fatalf("not so after %v", Limit)
	}
	t.Fatalf("not so after %v: %s", Limit, fmt.Sprintf(message[0].(string), message[1:]...))
}
