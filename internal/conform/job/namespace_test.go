package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// apart is a program that runs as rank 1 in namespaces of its own, and else as it is.
func apart(t *testing.T, namespaces string) string {
	t.Helper()
	bin, err := program()
	require.NoError(t, err)
	if out, err := exec.Command("sh", "-c", "unshare "+namespaces+" --fork true").CombinedOutput(); err != nil {
		t.Skipf("this process may not make namespaces: %v: %s", err, out)
	}
	script := filepath.Join(t.TempDir(), "apart")
	text := fmt.Sprintf("#!/bin/sh\n[ $UBCOLL_RANK = 1 ] && exec unshare %s --fork --kill-child %s \"$@\"\nexec %s \"$@\"\n",
		namespaces, bin, bin)
	require.NoError(t, os.WriteFile(script, []byte(text), 0o700))
	return script
}

// Ranks in different pid namespaces, as in several containers of one host, reach each other over their sockets.
func TestPIDNamespaces(t *testing.T) {
	for name, namespaces := range map[string]string{
		"own /proc":       "--pid --mount-proc",
		"the host's proc": "--pid",
	} {
		t.Run(name, func(t *testing.T) {
			startProgram(t, apart(t, namespaces), 3, none, "random", "imports", "family", "descriptors").succeed(t)
		})
	}
}

// A rank that dies in another namespace is seen to, either way.
func TestPIDNamespaceKill(t *testing.T) {
	script := apart(t, "--pid --mount-proc")
	for victim := range 3 {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			dir := t.TempDir()
			j := startProgram(t, script, 3, func(int) []string { return []string{"CONFORM_DIR=" + dir} }, "kill")
			awaitReady(t, dir, 3, func(r int) string { return j.output[r].String() })
			require.NoError(t, j.cmds[victim].Process.Kill())
			killed := time.Now()
			j.wait()
			checkReports(t, dir, 3, victim, killed, func(r int) string { return j.output[r].String() })
		})
	}
}

// Where not even sockets reach, Open says that this is not supported, on all ranks.
func TestNamespacesUnreachable(t *testing.T) {
	where := "UBCOLL_RENDEZVOUS=unix:" + t.TempDir() + "/s"
	j := startProgram(t, apart(t, "--pid --net --mount-proc"), 2, func(int) []string { return []string{where} }, "order")
	for r, err := range j.wait() {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "rank %d: %s", r, j.output[r])
		require.Equal(t, 5, exit.ExitCode(), "rank %d: %s", r, j.output[r])
		require.Contains(t, j.output[r].String(), "another pid namespace")
		require.Contains(t, j.output[r].String(), "not supported")
	}
}
