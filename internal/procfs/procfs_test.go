//go:build linux

package procfs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/procfs"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func() error{"busy": busy})
	os.Exit(m.Run())
}

// busy has threads that run.
func busy() error {
	for range 4 {
		go func() {
			for k := 0; ; k++ {
				_ = k
			}
		}()
	}
	select {}
}

func TestSignals(t *testing.T) {
	require.False(t, procfs.Stopped(os.Getpid()))
	require.False(t, procfs.Gone(os.Getpid()))
	c := testkit.Child("busy")
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	pid := c.Process.Pid
	require.False(t, procfs.Stopped(pid))
	require.NoError(t, c.Process.Signal(syscall.SIGSTOP))
	testkit.Eventually(t, func() bool { return procfs.Stopped(pid) })
	require.False(t, procfs.Gone(pid))
	require.NoError(t, c.Process.Kill())
	testkit.Eventually(t, func() bool { return procfs.Gone(pid) })
	require.True(t, procfs.Stopped(pid), "a zombie")
	require.Error(t, c.Wait())
	require.True(t, procfs.Gone(pid), "no such process")
}

// Children and their children, and nothing once they are gone.
func TestDescendants(t *testing.T) {
	c := exec.Command("sh", "-c", "sh -c 'sleep 600; :' & read x")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	pid := c.Process.Pid
	testkit.Eventually(t, func() bool { return len(procfs.Descendants(pid)) == 2 })
	below := procfs.Descendants(pid)
	require.Subset(t, procfs.Descendants(os.Getpid()), append(below, pid))
	for _, child := range below {
		require.NoError(t, syscall.Kill(child, syscall.SIGKILL))
	}
	require.NoError(t, in.Close())
	require.Error(t, c.Wait())
	require.Empty(t, procfs.Descendants(pid))
}

// A program's name does not look like a state.
func TestName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a) Z (b")
	testkit.WriteProgram(t, name, "#!/bin/sh\nread x\n")
	c := exec.Command(name)
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	require.False(t, procfs.Gone(c.Process.Pid))
	require.NoError(t, in.Close())
	require.Error(t, c.Wait())
}

// What a process does, by its threads.
func TestStateOf(t *testing.T) {
	c := testkit.Child("busy")
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	pid := c.Process.Pid
	becomes := func(s procfs.State) {
		t.Helper()
		testkit.Eventually(t, func() bool { return procfs.StateOf(pid) == s }, "%v", s)
	}
	becomes(procfs.Running)
	testkit.Stop(t, c)
	require.Equal(t, procfs.Halted, procfs.StateOf(pid))
	require.NoError(t, c.Process.Kill())
	becomes(procfs.Zombie)
	require.Error(t, c.Wait())
	require.Equal(t, procfs.Vanished, procfs.StateOf(pid))

	s := exec.Command("sleep", "600")
	require.NoError(t, s.Start())
	pid = s.Process.Pid
	becomes(procfs.Sleeping)
	require.NoError(t, s.Process.Kill())
	require.Error(t, s.Wait())
}
