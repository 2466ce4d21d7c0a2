//go:build !linux

package cpu

import "runtime"

// Affinity returns the processors that the calling thread may run on, in order. If the system does not say, it returns
// processors 0 to runtime.NumCPU()-1.
func Affinity() (set []int) {
	for c := range runtime.NumCPU() {
		set = append(set, c)
	}
	return set
}
