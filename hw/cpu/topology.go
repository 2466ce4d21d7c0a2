package cpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sysCPU is where Linux describes its processors; elsewhere it does not exist, and the answers are the fallbacks.
const sysCPU = "/sys/devices/system/cpu"

// Cores is how many physical cores the processors of Affinity belong to: processors that share a core count once. It
// is the number of processors where the system does not say.
func Cores() int { return coresIn(sysCPU, Affinity()) }

func coresIn(dir string, cpus []int) int {
	cores := map[string]bool{}
	for _, c := range cpus {
		id, ok := readLine(dir, "cpu"+strconv.Itoa(c), "topology", "thread_siblings_list")
		if !ok {
			id = strconv.Itoa(c)
		}
		cores[id] = true
	}
	return len(cores)
}

// LastLevelCacheBytes is the size of the largest cache of the first processor of Affinity, which it may share with
// others; 0 if the system does not say.
func LastLevelCacheBytes() int {
	cpus := Affinity()
	if len(cpus) == 0 {
		return 0
	}
	return cacheIn(sysCPU, cpus[0])
}

func cacheIn(dir string, cpu int) (largest int) {
	caches, _ := filepath.Glob(filepath.Join(dir, "cpu"+strconv.Itoa(cpu), "cache", "index*"))
	for _, c := range caches {
		s, _ := readLine(c, "size") // as in "32768K"
		unit := 1
		for suffix, u := range map[string]int{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
			if t, ok := strings.CutSuffix(s, suffix); ok {
				s, unit = t, u
			}
		}
		if n, err := strconv.Atoi(s); err == nil {
			largest = max(largest, n*unit)
		}
	}
	return largest
}

func readLine(path ...string) (line string, ok bool) {
	b, err := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b)), err == nil
}

// Vendor is who made the processor, as in /proc/cpuinfo: "GenuineIntel", "AuthenticAMD"; "" if the system does not say.
func Vendor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "vendor_id" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
