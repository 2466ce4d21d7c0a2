package testkit

import (
	"math"
	"runtime"
)

// HeapInUse is how many bytes of Go's heap are in use: the least of several looks, since goroutines run on, and make
// garbage.
func HeapInUse() int {
	least := uint64(math.MaxInt)
	for range 5 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		least = min(least, m.HeapAlloc)
	}
	return int(least)
}
