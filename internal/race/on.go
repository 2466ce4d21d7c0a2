//go:build race

// Package race says whether the race detector is compiled in, and tells it what it does not see: sockets. Nor does it see
// mapped memory, so that race builds take what goroutine ranks share from the Go heap.
package race

import (
	"runtime"
	"unsafe"
)

// Enabled is true in race builds.
const Enabled = true

var sockets byte

// Send is called before the n bytes at p go out on a socket, by a system call that the detector does not see, as package
// syscall tells it of its own: what is read from any socket afterwards comes after all that was sent before.
func Send(p unsafe.Pointer, n int) {
	if n > 0 {
		runtime.RaceReadRange(p, n)
	}
	runtime.RaceReleaseMerge(unsafe.Pointer(&sockets))
}

// Receive is called after n bytes were read from a socket to p.
func Receive(p unsafe.Pointer, n int) {
	runtime.RaceAcquire(unsafe.Pointer(&sockets))
	if n > 0 {
		runtime.RaceWriteRange(p, n)
	}
}
