package shm

import "math"

// FreeMemory is how many bytes this process could still be given: what the system has, or what its control group and
// those above it allow, whichever is less. What a process asks for beyond that has the kernel end processes.
func FreeMemory() int {
	return min(systemMemory(), cgroupMemory("/sys/fs/cgroup", "/proc/self/cgroup"))
}

// MaxMappings is how many mappings a process may have (vm.max_map_count), or no limit if the system does not say.
func MaxMappings() int {
	if n, ok := readInt("/proc/sys/vm/max_map_count"); ok {
		return n
	}
	return math.MaxInt
}
