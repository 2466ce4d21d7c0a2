package testkit

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/procfs"
)

// Stop stops a process, and returns when none of its threads runs.
func Stop(t testing.TB, c *exec.Cmd) {
	t.Helper()
	require.NoError(t, c.Process.Signal(syscall.SIGSTOP))
	Eventually(t, func() bool { return procfs.Stopped(c.Process.Pid) })
}
