package cpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw"
)

func TestChoose(t *testing.T) {
	best := bestLevel()
	l, err := choose("")
	require.NoError(t, err)
	require.Equal(t, best, l)
	for name, want := range levelNames {
		l, err := choose(name)
		if !want.available() {
			require.ErrorIs(t, err, hw.ErrNotSupported, name)
			require.Equal(t, best, l)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, l)
		require.Equal(t, name, l.String())
	}
	_, err = choose("sse9")
	require.ErrorContains(t, err, "UBCOLL_CPU=sse9")
	require.Equal(t, runtime.GOARCH == "arm64" && best > levelGo, levelNEON.available())
}

// TestLevelOfVariable runs itself in another process with the variable set.
func TestLevelOfVariable(t *testing.T) {
	if want := os.Getenv("CPU_TEST_LEVEL"); want != "" {
		require.Equal(t, want, Level())
		require.Equal(t, want != os.Getenv("UBCOLL_CPU"), LevelError() != nil)
		return
	}
	for asked, got := range map[string]string{"go": "go", "nonsense": bestLevel().String()} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLevelOfVariable$", "-test.v")
		cmd.Env = append(os.Environ(), "UBCOLL_CPU="+asked, "CPU_TEST_LEVEL="+got)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: TestLevelOfVariable")
	}
}

func TestTopology(t *testing.T) {
	set := Affinity()
	require.NotEmpty(t, set)
	require.IsIncreasing(t, append([]int{-1}, set...))
	require.LessOrEqual(t, Cores(), len(set))
	require.Positive(t, Cores())
	require.GreaterOrEqual(t, LastLevelCacheBytes(), 0)

	dir := t.TempDir()
	write := func(content string, path ...string) {
		p := filepath.Join(append([]string{dir}, path...)...)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(content), 0o644))
	}
	write("0,2\n", "cpu0", "topology", "thread_siblings_list")
	write("0,2\n", "cpu2", "topology", "thread_siblings_list")
	write("1\n", "cpu1", "topology", "thread_siblings_list")
	write("32K\n", "cpu0", "cache", "index0", "size")
	write("32M\n", "cpu0", "cache", "index3", "size")
	write("garbage\n", "cpu1", "cache", "index0", "size")
	require.Equal(t, 2, coresIn(dir, []int{0, 1, 2}))
	require.Equal(t, 3, coresIn(dir, []int{0, 1, 2, 7}), "a processor without a description is a core")
	require.Equal(t, 32<<20, largestCache(dir, 0).bytes)
	require.Zero(t, largestCache(dir, 1).bytes)
	require.Zero(t, largestCache(dir, 9).bytes)
}

// Near on a simulated machine: two sockets with a cache and a memory node each.
func TestNear(t *testing.T) {
	dir := t.TempDir()
	write := func(content string, path ...string) {
		p := filepath.Join(append([]string{dir}, path...)...)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(content), 0o644))
	}
	for _, k := range []struct{ cpu, node, list string }{
		{"cpu0", "node0", "0-2,8"}, {"cpu2", "node0", "0-2,8"}, {"cpu4", "node1", "4-6,12"},
		{"cpu9", "node1", "x,9-"},
	} {
		write("64K\n", k.cpu, "cache", "index0", "size")
		write(k.cpu[3:]+"\n", k.cpu, "cache", "index0", "shared_cpu_list")
		write("32M\n", k.cpu, "cache", "index3", "size")
		write(k.list+"\n", k.cpu, "cache", "index3", "shared_cpu_list")
		write(k.list+"\n", k.cpu, k.node, "cpulist")
	}
	for _, k := range []struct {
		name        string
		cpus        []int
		cache, node int
	}{
		{"one processor", []int{0}, 0, 0},
		{"the second of its cache", []int{2, 8}, 0, 0},
		{"the other socket", []int{4, 12}, 4, 1},
		{"both sockets", []int{2, 4}, -1, -1},
		{"no description", []int{7}, -1, -1},
		{"a list that cannot be read", []int{9}, -1, -1},
		{"no processor", nil, -1, -1},
	} {
		t.Run(k.name, func(t *testing.T) {
			cache, node := nearIn(dir, k.cpus)
			require.Equal(t, []int{k.cache, k.node}, []int{cache, node})
		})
	}
	cache, node := Near() // of this machine
	require.GreaterOrEqual(t, cache, -1)
	require.GreaterOrEqual(t, node, -1)
}

// TestDistance: how far a memory node is, is what the firmware says of the nearest processor.
func TestDistance(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o644))
	}
	write("online", "0-1,4")
	for node, k := range map[int]struct{ cpus, distance string }{
		0: {"0-3", "10 21 32"}, 1: {"4-7", "21 10 31"}, 4: {"8", "32 31 10"}, 5: {"9", "x 21"},
	} {
		write(fmt.Sprintf("node%d/cpulist", node), k.cpus)
		write(fmt.Sprintf("node%d/distance", node), k.distance)
	}
	for _, k := range []struct {
		name string
		node int
		cpus []int
		want int
	}{
		{"its own", 1, []int{5}, 10},
		{"another", 1, []int{2}, 21},
		{"the nearer of two", 4, []int{0, 6}, 31},
		{"one without a number", 5, []int{0}, 0},
		{"one without processors of ours", 0, []int{40}, 0},
		{"no such node", 3, []int{0}, 0},
		{"none", -1, []int{0}, 0},
	} {
		t.Run(k.name, func(t *testing.T) { require.Equal(t, k.want, distanceIn(dir, k.node, k.cpus)) })
	}
	require.GreaterOrEqual(t, Distance(0), 0)
}
