package team

import "time"

// Within calls end and waits for it, for at most limit. If end returns in time, Within returns its error. Otherwise
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
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-over:
		return true, err
	case <-timer.C:
		close(gone)
		return false, nil
	}
}
