package shm

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// FreeMemory returns how many more bytes this process can get: what the system has left, or what its control group and
// those above it allow, whichever is less. If a process uses more, the kernel kills processes.
func FreeMemory() int { return freeMemory(math.MaxInt) }

// freeMemory is FreeMemory, or less if that is at least enough.
func freeMemory(enough int) int {
	return min(systemMemory(), cgroupMemory("/sys/fs/cgroup", "/proc/self/cgroup", enough))
}

// MaxMappings returns how many mappings a process may have (vm.max_map_count); no limit if the system does not say.
func MaxMappings() int {
	if n, ok := readInt("/proc/sys/vm/max_map_count"); ok {
		return n
	}
	return math.MaxInt
}

// systemMemory returns how many bytes the system has left; no limit if it does not say.
func systemMemory() int {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return math.MaxInt
	}
	free := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 1 && (f[0] == "MemAvailable:" || f[0] == "SwapFree:") {
			kib, _ := strconv.Atoi(f[1])
			free += kib << 10
		}
	}
	if free == 0 {
		return math.MaxInt
	}
	return free
}

// cgroupMemory returns how much the process's control group, of version 2 or 1, and those above it allow beyond what
// they use, or less if that is at least enough. Inactive page cache does not count as used; active page cache does, though
// the kernel could drop it.
func cgroupMemory(root, self string, enough int) int {
	b, err := os.ReadFile(self)
	if err != nil {
		return math.MaxInt
	}
	free := math.MaxInt
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers of version 1, path
		switch {
		case len(f) < 3:
		case f[0] == "0":
			free = min(free, groupMemory(root, f[2], "memory.max", "memory.current", "inactive_file ", enough))
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			free = min(free, groupMemory(filepath.Join(root, "memory"), f[2], "memory.limit_in_bytes",
				"memory.usage_in_bytes", "total_inactive_file ", enough))
		}
	}
	return free
}

// groupMemory returns the least that a group and those above it, up to root, have left. limit, used and inactive are
// the names of the files and of the entry in memory.stat that say so.
func groupMemory(root, path, limit, used, inactive string, enough int) int {
	free := math.MaxInt
	for dir := filepath.Join(root, path); strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
		most, ok1 := readInt(filepath.Join(dir, limit))
		now, ok2 := readInt(filepath.Join(dir, used))
		if !ok1 || !ok2 {
			continue // no limit ("max"), or no such controller or group here
		}
		var stat []byte // the kernel takes long to make it
		if most-now < enough {
			stat, _ = os.ReadFile(filepath.Join(dir, "memory.stat"))
		}
		for line := range strings.Lines(string(stat)) {
			if text, ok := strings.CutPrefix(line, inactive); ok {
				cache, _ := strconv.Atoi(strings.TrimSpace(text))
				now -= cache
			}
		}
		free = min(free, max(most-now, 0))
	}
	return free
}

func readInt(name string) (int, bool) {
	b, err := os.ReadFile(name)
	n, perr := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil && perr == nil
}
