package cpu

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Affinity returns the processors that the calling thread may run on, in order. If the system does not say, it returns
// processors 0 to runtime.NumCPU()-1.
func Affinity() (set []int) {
	var mask unix.CPUSet
	if unix.SchedGetaffinity(0, &mask) == nil {
		for left, c := mask.Count(), 0; left > 0; c++ {
			if mask.IsSet(c) {
				set = append(set, c)
				left--
			}
		}
		return set
	}
	for c := range runtime.NumCPU() { // there are more processors than a CPUSet holds
		set = append(set, c)
	}
	return set
}
