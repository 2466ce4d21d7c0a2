//go:build linux && cgo && (amd64 || arm64)

package collnet

import (
	"context"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/internal/testkit/switchtest"
)

func plugin(t testing.TB, version string) string { return switchtest.Plugin(t, version) }

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
	h, err := g.Register(ctx, uintptr(at), n)
	return Memory{at, h}, b, err
}
