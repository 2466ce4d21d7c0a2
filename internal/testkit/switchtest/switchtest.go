// Package switchtest builds the reference CollNet plugin of tools/plugins and its switch, for tests.
package switchtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

var built sync.Map

// Build compiles a source of tools/plugins, once, and returns a copy, which is loaded as another library.
func Build(t testing.TB, name, source string, flags ...string) string {
	t.Helper()
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	_, here, _, _ := runtime.Caller(0)
	key := fmt.Sprint(source, flags)
	b, ok := built.Load(key)
	if !ok {
		to := filepath.Join(t.TempDir(), name)
		out, err := exec.Command(cc, append(append([]string{"-O2", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-const-variable"},
			flags...), "-o", to, filepath.Join(filepath.Dir(here), "../../../tools/plugins", source))...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		all, err := os.ReadFile(to)
		require.NoError(t, err)
		b = all
		built.Store(key, all)
	}
	to := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(to, b.([]byte), 0o700))
	return to
}

// Plugin compiles the plugin with an interface of that version.
func Plugin(t testing.TB, version string, flags ...string) string {
	t.Helper()
	return Build(t, "libnccl-net-test"+version+".so", "plugin.c", append([]string{"-fPIC", "-shared", "-fvisibility=hidden", "-DVERSION=" + version},
		flags...)...)
}

// Start starts a switch that plugins of this process, and those that it starts, find.
func Start(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Build(t, "ubcoll-switch", "switch.c"))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	t.Setenv("COLLNET_SWITCH", "127.0.0.1:"+strings.TrimSpace(port))
	return cmd
}

// Use starts a switch, and has communicators use it.
func Use(t testing.TB, flags ...string) *exec.Cmd {
	t.Helper()
	t.Setenv("UBCOLL_COLLNET_PLUGIN", Plugin(t, "11", flags...))
	return Start(t)
}
