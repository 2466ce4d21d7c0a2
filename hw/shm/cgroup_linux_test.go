package shm

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCgroupMemory(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o700))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	self := write("self", "0::/job/pod\n")
	require.Equal(t, math.MaxInt, cgroupMemory(root, self, math.MaxInt), "no such group")
	write("job/pod/memory.max", "max\n")
	write("job/pod/memory.current", "50\n")
	require.Equal(t, math.MaxInt, cgroupMemory(root, self, math.MaxInt), "no limit")
	write("job/memory.max", "1000\n")
	write("job/memory.current", "700\n")
	require.Equal(t, 300, cgroupMemory(root, self, math.MaxInt), "the group above limits")
	write("job/memory.stat", "anon 600\ninactive_file 90\nslab 10\n")
	require.Equal(t, 390, cgroupMemory(root, self, math.MaxInt), "inactive files can go")
	require.Equal(t, 390, cgroupMemory(root, self, 301), "inactive files are needed")
	require.Equal(t, 300, cgroupMemory(root, self, 300), "enough without inactive files")
	write("job/pod/memory.max", "40\n")
	require.Zero(t, cgroupMemory(root, self, math.MaxInt), "over its limit already")
	one := write("self", "5:cpu,cpuacct:/x\n4:memory:/old/pod\n0::/\n")
	require.Equal(t, math.MaxInt, cgroupMemory(root, one, math.MaxInt), "version 1, no such group")
	write("memory/old/pod/memory.limit_in_bytes", "9223372036854771712\n")
	write("memory/old/pod/memory.usage_in_bytes", "50\n")
	write("memory/old/memory.limit_in_bytes", "1000\n")
	write("memory/old/memory.usage_in_bytes", "700\n")
	write("memory/old/memory.stat", "inactive_file 10\ntotal_inactive_file 90\n")
	require.Equal(t, 390, cgroupMemory(root, one, math.MaxInt), "version 1, the group above limits")
	require.Equal(t, math.MaxInt, cgroupMemory(root, root+"/none", math.MaxInt))
}
