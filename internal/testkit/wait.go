// Package testkit has what tests of several packages need: waiting, with limits so long that a busy machine fails no
// test (a test that passes waits only as long as it must); seeds; the test program as another process; logs; what the
// kernel says about this process. Package gputest is for ranks on devices.
package testkit

import (
	"fmt"
	"testing"
	"time"
)

// Limit is how long a test waits for what should come soon, before it decides that it never comes.
const Limit = 2 * time.Minute

// Until waits until done returns true, Limit at most, and returns done's last result.
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

// Eventually fails t at once unless done becomes true in time. message is a format with its arguments; pass pointers to
// those that change meanwhile.
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
