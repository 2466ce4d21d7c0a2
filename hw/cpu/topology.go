package cpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// sysCPU is where Linux describes the processors. On other systems it does not exist, and the functions return their
// fallbacks.
const sysCPU = "/sys/devices/system/cpu"

// Cores returns how many physical cores the processors of Affinity belong to: processors that share a core count once.
// If the system does not say, it returns the number of processors.
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

// LastLevelCacheBytes returns the size of the largest cache of the first processor of Affinity, which other processors
// may share; 0 if the system does not say.
func LastLevelCacheBytes() int {
	cpus := Affinity()
	if len(cpus) == 0 {
		return 0
	}
	return largestCache(sysCPU, cpus[0]).bytes
}

// largest remembers, by number, what findCache found for this system's processors: each rank that opens asks for it.
var largest sync.Map

// cache is a processor's largest cache.
type cache struct {
	path  string // of what describes it; "" if there is none
	bytes int
}

func largestCache(dir string, cpu int) cache {
	if dir != sysCPU {
		return findCache(dir, cpu)
	}
	c, ok := largest.Load(cpu)
	if !ok {
		c, _ = largest.LoadOrStore(cpu, findCache(dir, cpu))
	}
	return c.(cache)
}

func findCache(dir string, cpu int) (most cache) {
	caches, _ := filepath.Glob(filepath.Join(dir, "cpu"+strconv.Itoa(cpu), "cache", "index*"))
	for _, c := range caches {
		s, _ := readLine(c, "size") // as in "32768K"
		unit := 1
		for suffix, u := range map[string]int{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
			if t, ok := strings.CutSuffix(s, suffix); ok {
				s, unit = t, u
			}
		}
		if n, err := strconv.Atoi(s); err == nil && n*unit > most.bytes {
			most = cache{c, n * unit}
		}
	}
	return most
}

// Near says which memory the processors of Affinity are close to: the last-level cache that they share, named by its
// first processor, and their memory node. Either is -1 if they do not share one, or if the system does not say.
func Near() (cache, node int) { return nearIn(sysCPU, Affinity()) }

func nearIn(dir string, cpus []int) (first, node int) {
	first, node = -1, -1
	if len(cpus) == 0 {
		return first, node
	}
	if sharers := readList(largestCache(dir, cpus[0]).path, "shared_cpu_list"); containsAll(sharers, cpus) {
		first = sharers[0]
	}
	nodes, _ := filepath.Glob(filepath.Join(dir, "cpu"+strconv.Itoa(cpus[0]), "node*"))
	for _, path := range nodes {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "node"))
		if err == nil && containsAll(readList(path, "cpulist"), cpus) {
			node = n
		}
	}
	return first, node
}

// Distance returns how far a memory node is from the nearest of the processors of Affinity, as the firmware says: 10 for their
// own node, more for others. It is 0 if there is no such node, or if the system does not say.
func Distance(node int) int { return distanceIn("/sys/devices/system/node", node, Affinity()) }

func distanceIn(dir string, node int, cpus []int) (least int) {
	line, _ := readLine(dir, "node"+strconv.Itoa(node), "distance") // to each node that is online, in order
	all := strings.Fields(line)
	for i, other := range readList(dir, "online") {
		near := readList(dir, "node"+strconv.Itoa(other), "cpulist")
		if i >= len(all) || !slices.ContainsFunc(cpus, func(c int) bool { return slices.Contains(near, c) }) {
			continue
		}
		if d, err := strconv.Atoi(all[i]); err == nil && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

func containsAll(set, cpus []int) bool {
	return !slices.ContainsFunc(cpus, func(c int) bool { return !slices.Contains(set, c) })
}

// readList reads a list of processors or nodes like "0-3,8", and leaves out what it cannot parse.
func readList(path ...string) (cpus []int) {
	line, _ := readLine(path...)
	for part := range strings.SplitSeq(line, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		lo, err1 := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil {
			continue
		}
		for c := lo; c <= min(hi, lo+1<<16); c++ {
			cpus = append(cpus, c)
		}
	}
	return cpus
}

func readLine(path ...string) (line string, ok bool) {
	b, err := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b)), err == nil
}

// Vendor is the processor's maker, as in /proc/cpuinfo: "GenuineIntel", "AuthenticAMD"; "" if the system does not say.
func Vendor() string { return vendor() }

var vendor = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "vendor_id" {
			return strings.TrimSpace(v)
		}
	}
	return ""
})
