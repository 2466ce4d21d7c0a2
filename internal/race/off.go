//go:build !race

// Package race says whether the race detector is compiled in, and tells it what it does not see: sockets. Nor does it see
// mapped memory, so that race builds take what goroutine ranks share from the Go heap.
package race

import "unsafe"

// Enabled is true in race builds.
const Enabled = false

// Send does nothing.
func Send(unsafe.Pointer, int) {}

// Receive does nothing.
func Receive(unsafe.Pointer, int) {}
