//go:build !race

// Package race says whether the race detector is compiled in. It does not see mapped memory, so that race builds take
// what goroutine ranks share from the Go heap.
package race

// Enabled is true in race builds.
const Enabled = false
