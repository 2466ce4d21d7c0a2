package team

import "time"

// Within is end's error, for who waits for it for limit at most: then inTime is false, end goes on by itself, and late
// gets its error.
func Within(limit time.Duration, end func() error, late func(error)) (inTime bool, err error) {
	over, gone := make(chan error), make(chan struct{})
	go func() {
		var err error
		defer func() { // also if a handler of the program's that it calls ends the goroutine
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
