package cpu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseQuota(t *testing.T) {
	for text, want := range map[string]float64{
		"max 100000\n": 0, "150000 100000\n": 1.5, "200000": 2, "5000 10000": 0.5, "": 0, "max": 0, "1 2 3": 0, "0 100000": 0,
		"100000 0": 0, "-1 100000": 0, "1e3 100": 0, "99999999999999999999 1": 0,
	} {
		require.Equal(t, want, parseQuota2(text), "%q", text)
	}
	require.Zero(t, parseQuota1("-1\n", "100000\n"))
	require.Equal(t, 4.0, parseQuota1("400000\n", "100000\n"))
}

func TestHierarchies(t *testing.T) {
	const v2 = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
	const v1 = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
	for _, k := range []struct {
		name, groups, mounts string
		want                 []string // mount, dir
	}{
		{"version 2", "0::/job/pod\n", v2, []string{"/sys/fs/cgroup", "/sys/fs/cgroup/job/pod"}},
		{"version 2, a namespace of its own", "0::/\n", v2, []string{"/sys/fs/cgroup", "/sys/fs/cgroup"}},
		{"version 2, the host's path in a container", "0::/kube/pod\n", strings.Replace(v2, " / ", " /kube/pod ", 1),
			[]string{"/sys/fs/cgroup", "/sys/fs/cgroup"}},
		{"another group is mounted", "0::/kube/podother\n", strings.Replace(v2, " / ", " /kube/pod ", 1),
			[]string{"/sys/fs/cgroup", "/sys/fs/cgroup"}},
		{"outside of the namespace", "0::/../..\n", v2, []string{"/sys/fs/cgroup", "/sys/fs/cgroup"}},
		{"version 1", "4:memory:/m\n3:cpu,cpuacct:/job\n2:cpuset:/\n", v1,
			[]string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/job"}},
		{"both", "1:cpu:/a\n0::/b\n", v1 + v2, []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/a",
			"/sys/fs/cgroup", "/sys/fs/cgroup/b"}},
		{"a blank in the path", "0::/x\n", "1 2 0:3 / /my\\040groups rw - cgroup2 none rw\n",
			[]string{"/my groups", "/my groups/x"}},
		{"nothing", "", "", nil},
		{"nonsense", "a:b\n::\n", "- -\n1 2\n", nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			var got []string
			for _, h := range hierarchies(k.groups, k.mounts) {
				got = append(got, h.mount, h.dir)
			}
			require.Equal(t, k.want, got)
		})
	}
}

func TestQuotaFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.Zero(t, quota1(dir))
	require.Zero(t, quota2(dir))
	write("cpu.max", "250000 100000\n")
	write("cpu.cfs_quota_us", "300000\n")
	write("cpu.cfs_period_us", "100000\n")
	require.Equal(t, 2.5, quota2(dir))
	require.Equal(t, 3.0, quota1(dir))
	require.Equal(t, identity(dir), identity(dir+"/../"+filepath.Base(dir)))
	require.NotEqual(t, identity(dir), identity(filepath.Dir(dir)))
	t.Log(Quotas())
}

func FuzzQuota(f *testing.F) {
	f.Add("0::/a\n1:cpu:/b\n", "1 2 0:3 / /m\\040n rw - cgroup2 none rw\n3 4 0:5 /b /c rw - cgroup x rw,cpu\n", "1 2")
	f.Fuzz(func(t *testing.T, groups, mounts, text string) {
		for _, h := range hierarchies(groups, mounts) {
			if h.dir != h.mount && !strings.HasPrefix(h.dir, strings.TrimSuffix(h.mount, "/")+"/") {
				t.Errorf("%q is not below %q", h.dir, h.mount)
			}
		}
		if q := parseQuota2(text); !(q >= 0) {
			t.Error(q)
		}
	})
}
