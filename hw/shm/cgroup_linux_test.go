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
	require.Equal(t, math.MaxInt, cgroupMemory(root, self), "no such group")
	write("job/pod/memory.max", "max\n")
	write("job/pod/memory.current", "50\n")
	require.Equal(t, math.MaxInt, cgroupMemory(root, self), "no limit")
	write("job/memory.max", "1000\n")
	write("job/memory.current", "700\n")
	require.Equal(t, 300, cgroupMemory(root, self), "the group above limits")
	write("job/memory.stat", "anon 600\ninactive_file 90\nslab 10\n")
	require.Equal(t, 390, cgroupMemory(root, self), "inactive files can go")
	write("job/pod/memory.max", "40\n")
	require.Zero(t, cgroupMemory(root, self), "over its limit already")
	require.Equal(t, math.MaxInt, cgroupMemory(root, write("self", "4:memory:/old\n")), "version 1 is not read")
	require.Equal(t, math.MaxInt, cgroupMemory(root, root+"/none"))
}
