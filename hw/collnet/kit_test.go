//go:build linux && cgo && (amd64 || arm64)

package collnet

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit"
)

const sources = "../../tools/plugins"

// build compiles a source of the reference plugin, once, and returns a copy, which is loaded as another library.
func build(t testing.TB, name, source string, flags ...string) string {
	t.Helper()
	cc := testkit.Compiler(t, os.Getenv("CC"), "cc", "gcc", "clang")
	key := fmt.Sprint(source, flags)
	b, ok := built.Load(key)
	if !ok {
		to := filepath.Join(t.TempDir(), name)
		out, err := exec.Command(cc, append(append([]string{"-O2", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-const-variable"},
			flags...), "-o", to, filepath.Join(sources, source))...).CombinedOutput()
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

var built sync.Map

// plugin compiles the reference plugin with an interface of that version.
func plugin(t testing.TB, version string) string {
	return build(t, "libnccl-net-test"+version+".so", "plugin.c", "-fPIC", "-shared", "-fvisibility=hidden", "-DVERSION="+version)
}

// startSwitch starts a switch that plugins of this process find.
func startSwitch(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(build(t, "ubcoll-switch", "switch.c"))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	t.Setenv("UBCOLL_SWITCH", "127.0.0.1:"+strings.TrimSpace(port))
	return cmd
}

func load(t testing.TB, version string) *Plugin {
	t.Helper()
	p, err := Load(t.Context(), plugin(t, version), 1, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return p
}

// members makes a group of n members, and runs do on each.
func members(t testing.TB, p *Plugin, n int, do func(ctx context.Context, g *Group) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listeners, handles := make([]*Listener, n), make([][HandleBytes]byte, n)
	for i := range n {
		var err error
		listeners[i], err = p.Listen(ctx, 0)
		require.NoError(t, err)
		handles[i] = listeners[i].Handle
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var g *Group
			if g, errs[i] = listeners[i].Connect(ctx, handles, i); errs[i] == nil {
				errs[i] = do(ctx, g)
			}
		})
	}
	all.Wait()
	return errs
}

// memory is registered with g.
func memory(ctx context.Context, g *Group, n int) (Memory, []byte, error) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE) // not on the Go heap
	if err != nil {
		return Memory{}, nil, err
	}
	at := unsafe.Pointer(unsafe.SliceData(b))
	h, err := g.Register(ctx, at, n)
	return Memory{at, h}, b, err
}
