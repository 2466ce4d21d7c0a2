//go:build !linux

package cpu

import "runtime"

// Affinity is the processors that the calling thread may run on, in order; on systems that do not say, the processors
// from 0 to runtime.NumCPU()-1.
func Affinity() (set []int) {
	for c := range runtime.NumCPU() {
		set = append(set, c)
	}
	return set
}
