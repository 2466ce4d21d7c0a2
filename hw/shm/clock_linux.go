package shm

import "golang.org/x/sys/unix"

// Monotonic is the time since this host started, in nanoseconds, by the clock that all its processes share and that
// nobody sets (CLOCK_MONOTONIC, which package time reads too). Local; does not block. 0 if it cannot be read.
func Monotonic() uint64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}
