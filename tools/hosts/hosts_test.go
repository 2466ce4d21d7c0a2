//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/env"
)

func TestOrder(t *testing.T) {
	for _, k := range []struct {
		args string
		want []int
	}{
		{"2 -ranks 2,2", []int{0, 0, 1, 1}},
		{"2 -ranks 2,2 -map cyclic", []int{0, 1, 0, 1}},
		{"3 -ranks 3,0,1 -map cyclic", []int{0, 2, 0, 0}},
		{"3", []int{0, 1, 2}},
	} {
		p, err := parse(append(strings.Fields(k.args), "--", "true"))
		require.NoError(t, err)
		require.Equal(t, k.want, p.order(), k.args)
	}
	for _, bad := range []string{"0", "2 -ranks 1", "2 -ranks 1,2,3", "2 -map round", "2 -mpi none -name UPPER"} {
		_, err := parse(append(strings.Fields(bad), "--", "true"))
		require.Error(t, err, bad)
	}
}

// Whatever ends a run, nothing of it stays but its folder, which the next one removes.
func TestRemoved(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "hosts")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		id := fmt.Sprintf("r%d", os.Getpid()%1000000)
		sleep := fmt.Sprint(3600+int(s), ".", os.Getpid())
		cmd := exec.Command(bin, "3", "-name", id, "--", "sh", "-c", "echo up; exec sleep "+sleep)
		up, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		if n, err := up.Read(make([]byte, 2)); n == 0 {
			var e *exec.ExitError
			if errors.As(cmd.Wait(), &e) && e.ExitCode() == cannot && !env.Requires("hosts") {
				t.Skip("this machine makes no hosts")
			}
			t.Fatal(err)
		}
		require.NoError(t, cmd.Process.Signal(s))
		require.Error(t, cmd.Wait())
		left := true
		for begin := time.Now(); left && time.Since(begin) < time.Minute; time.Sleep(10 * time.Millisecond) {
			left = running(sleep)
		}
		require.False(t, left, "processes stay after %v", s)
		require.NoError(t, exec.Command(bin, "1", "-name", "x"+id[1:], "--", "true").Run())
		require.NoDirExists(t, filepath.Join(runs, id))
	}
}

// running reports whether some process has this argument.
func running(argument string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // its pattern is right
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "sleep\x00"+argument) {
			return true
		}
	}
	return false
}
