package cpu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Quota is how much processor time the processes of a control group may use together.
type Quota struct {
	Group string  `json:"group"` // its identity on this host, the same in every container
	CPUs  float64 `json:"cpus"`
}

// Quotas returns the limits of the control groups that this process is in (cpu.max of version 2, cpu.cfs_quota_us of
// version 1), as far as it can see them; none if nothing limits it. Local.
func Quotas() []Quota {
	groups, err1 := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err1 != nil || err2 != nil {
		return nil
	}
	var all []Quota
	for _, h := range hierarchies(string(groups), string(mounts)) {
		for dir := h.dir; ; dir = filepath.Dir(dir) {
			if cpus := h.read(dir); cpus > 0 {
				all = append(all, Quota{identity(dir), cpus})
			}
			if dir == h.mount || len(dir) <= len(h.mount) {
				break
			}
		}
	}
	return all
}

// hierarchy is a control group hierarchy, and this process's group in it.
type hierarchy struct {
	mount string // where the groups are mounted
	dir   string // the process's own group: mount, or below it
	read  func(dir string) (cpus float64)
}

// hierarchies returns the hierarchies that limit processor time. Its arguments are the contents of /proc/self/cgroup
// and /proc/self/mountinfo.
func hierarchies(groups, mounts string) (hs []hierarchy) {
	var v1, v2 string // the process's groups
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) < 3:
		case f[0] == "0" && f[1] == "":
			v2 = f[2]
		case slices.Contains(strings.Split(f[1], ","), "cpu"):
			v1 = f[2]
		}
	}
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		root, mount := unescape(f[3]), unescape(f[4])
		switch {
		case g[0] == "cgroup2" && v2 != "":
			hs = append(hs, hierarchy{mount, below(mount, root, v2), quota2})
		case g[0] == "cgroup" && v1 != "" && slices.Contains(strings.Split(g[2], ","), "cpu"):
			hs = append(hs, hierarchy{mount, below(mount, root, v1), quota1})
		}
	}
	return hs
}

// below returns the directory of the group called path, where root is the group that is mounted at mount. A container
// may see the path that the host sees, but only its own group: then below returns mount.
func below(mount, root, path string) string {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return mount
	}
	dir := filepath.Join(mount, rest)
	if dir != mount && !strings.HasPrefix(dir, strings.TrimSuffix(mount, "/")+"/") { // a path with ".."
		return mount
	}
	return dir
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func quota2(dir string) float64 {
	b, _ := os.ReadFile(filepath.Join(dir, "cpu.max"))
	return parseQuota2(string(b))
}

func quota1(dir string) float64 {
	quota, _ := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us"))
	period, _ := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
	return parseQuota1(string(quota), string(period))
}

// parseQuota2 reads "$MAX $PERIOD", in microseconds. It returns 0 for no limit ("max"), or for text that makes no
// sense.
func parseQuota2(text string) float64 {
	f := strings.Fields(text)
	if len(f) == 1 {
		f = append(f, "100000")
	}
	if len(f) != 2 {
		return 0
	}
	return parseQuota1(f[0], f[1])
}

// parseQuota1 reads the two files of version 1. It returns 0 for no limit (-1), or for text that makes no sense.
func parseQuota1(quota, period string) float64 {
	q, err1 := strconv.ParseUint(strings.TrimSpace(quota), 10, 63)
	p, err2 := strconv.ParseUint(strings.TrimSpace(period), 10, 63)
	if err1 != nil || err2 != nil || q == 0 || p == 0 {
		return 0
	}
	return float64(q) / float64(p)
}
