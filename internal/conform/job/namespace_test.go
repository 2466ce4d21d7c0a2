package main

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/conform"
)

// apart returns a program that runs as rank 1 in namespaces of its own, and normally as any other rank.
func apart(t *testing.T, namespaces string) string {
	t.Helper()
	bin := program(t)
	if out, err := exec.Command("sh", "-c", "unshare "+namespaces+" --fork true").CombinedOutput(); err != nil {
		t.Skipf("this process may not make namespaces: %v: %s", err, out)
	}
	return script(t, `[ $UBCOLL_RANK = 1 ] && exec unshare %s --fork --kill-child %s "$@"
exec %[2]s "$@"`, namespaces, bin)
}

// Ranks in different pid namespaces, like several containers of one host, reach each other over their sockets.
func TestPIDNamespaces(t *testing.T) {
	for name, namespaces := range map[string]string{
		"own /proc":       "--pid --mount-proc",
		"the host's proc": "--pid",
	} {
		t.Run(name, func(t *testing.T) {
			startProgram(t, apart(t, namespaces), 3, each(), "random", "imports", "family", "descriptors").succeed(t)
		})
	}
}

// The death of a rank in another pid namespace is noticed, in both directions.
func TestPIDNamespaceKill(t *testing.T) {
	bin := apart(t, "--pid --mount-proc")
	for victim := range 3 {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			dir := t.TempDir()
			j := startProgram(t, bin, 3, each(conform.DirVar+"="+dir), "kill")
			killed := j.kill(t, dir, victim, 0)
			j.wait()
			checkReports(t, dir, 3, victim, killed, j.said)
		})
	}
}

// If not even sockets connect them, ranks that claim one host are on several. Open says so on all ranks.
func TestNamespacesUnreachable(t *testing.T) {
	where := "UBCOLL_RENDEZVOUS=unix:" + t.TempDir() + "/s"
	j := startProgram(t, apart(t, "--pid --net --mount-proc"), 2, each(where, "UBCOLL_HOSTID=one"), "order")
	for r, err := range j.wait() {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "rank %d: %s", r, j.output[r])
		require.Equal(t, 5, exit.ExitCode(), "rank %d: %s", r, j.output[r])
		require.Contains(t, j.output[r].String(), "another pid namespace")
		require.Contains(t, j.output[r].String(), "not supported")
	}
}
