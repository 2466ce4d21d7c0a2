//go:build linux && cgo && (amd64 || arm64)

package cuda_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Another library captures and forbids unsafe calls on all threads. This package must still work then, and must not end
// that capture.
func TestGlobalCapture(t *testing.T) {
	c := gpu(t)
	s, side, k := stream(t, c), stream(t, c), kernel(t, c, "add")
	const n = 1000
	a := alloc(t, c, 4*n)
	require.NoError(t, side.Fill(a, 0, 4*n))
	l := cuda.Launch{Grid: 4, Block: 256}
	add := func(s *cuda.Stream) error { return k.Launch(s, l, params(addParams{a, n, 1})) }
	require.NoError(t, side.BeginCapture())
	require.NoError(t, add(side))
	g, err := side.EndCapture()
	require.NoError(t, err)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, s.BeginGlobalCapture())
	require.NoError(t, add(s))
	other := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the goroutine has its own thread
		_, ended := side.Capture()
		p, err := c.Alloc(1 << 20)
		other <- testkit.InOrder(
			func() error { return errors.Join(err, ended) },
			func() error { return add(side) },
			func() error { return g.Launch(side) },
			func() error { return c.Free(p) },
			side.Sync)
	}()
	require.NoError(t, <-other)
	captured, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, captured.Launch(side))
	got := make([]byte, 4*n)
	require.NoError(t, side.Download(got, a))
	require.EqualValues(t, 3, got[0])
	require.NoError(t, captured.Close())
	require.NoError(t, g.Close())
}

// A stream that is closed while it is captured takes the capture with it: the next stream may get its handle.
func TestCloseInCapture(t *testing.T) {
	c := gpu(t)
	s, err := c.NewStream()
	require.NoError(t, err)
	handle := s.Handle()
	require.NoError(t, s.BeginCapture())
	require.True(t, cuda.Captured(handle))
	t.Log(s.Close())
	require.False(t, cuda.Captured(handle))
}
