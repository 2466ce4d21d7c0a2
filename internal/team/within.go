package team

import (
	"fmt"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/clock"
)

// Within calls end and waits for it, for at most limit of the time in which this process runs. If end returns in time, Within returns its error. Otherwise
// inTime is false, end goes on, and late gets its error.
func Within(limit time.Duration, end func() error, late func(error)) (inTime bool, err error) {
	over, gone := make(chan error), make(chan struct{})
	go func() {
		var err error
		defer func() { // deferred, because end may call the program's handler, which may end the goroutine
			select {
			case over <- err:
			case <-gone:
				late(err)
			}
		}()
		err = end()
	}()
	timer := clock.After(limit)
	defer timer.Stop()
	select {
	case err := <-over:
		return true, err
	case <-timer.C:
		close(gone)
		return false, nil
	}
}

// Unended is the error of a Close or Free that has waited for that long, on a rank that has a device or not. It must not
// look at the peers' areas, which may be unmapped by now.
func Unended(limit time.Duration, device bool) error {
	what := "another communicator's or a peer's use of this rank's memory or connections"
	if device {
		what = "what is queued on this rank's device, or another communicator's or a peer's use of its memory,"
	}
	return fmt.Errorf("%s has not come to an end in %v, and is waited for without this call: %w", what, limit, fault.ErrTimeout)
}
