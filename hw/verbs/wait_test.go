//go:build linux && cgo && (amd64 || arm64)

package verbs

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

// waits makes a waiter on one end of a pipe, a function that writes a byte, and a try that reads one.
func waits(t *testing.T) (w *waiter, write func(), take func() bool) {
	t.Helper()
	var p [2]int
	require.NoError(t, syscall.Pipe2(p[:], syscall.O_CLOEXEC))
	w, err := newWaiter(p[0], "pipe")
	require.NoError(t, err)
	t.Cleanup(func() { w.close(); syscall.Close(p[0]); syscall.Close(p[1]) })
	write = func() {
		if _, err := syscall.Write(p[1], []byte{1}); err != nil {
			t.Error(err)
		}
	}
	return w, write, func() bool { n, _ := syscall.Read(p[0], make([]byte, 1)); return n == 1 }
}

// TestWaiterTurn: a goroutine that waits for its turn stops when its own context ends, and when the waiter closes.
func TestWaiterTurn(t *testing.T) {
	w, _, take := waits(t)
	first, second := make(chan error, 1), make(chan error, 1)
	looked := make(chan struct{}, 1)
	go func() {
		first <- w.wait(t.Context(), func() bool {
			select {
			case looked <- struct{}{}:
			default:
			}
			return take()
		})
	}()
	<-looked
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fault.ErrAborted)
	require.ErrorIs(t, w.wait(ctx, take), fault.ErrAborted)
	go func() { second <- w.wait(t.Context(), take) }()
	w.close()
	require.ErrorIs(t, <-first, fault.ErrClosed)
	require.ErrorIs(t, <-second, fault.ErrClosed)
}

// TestWaiterEnd: a context that ends together with its wait does not affect the next wait.
func TestWaiterEnd(t *testing.T) {
	w, write, take := waits(t)
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { write(); cancel() }()
		err := w.wait(ctx, take)
		<-ctx.Done()
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.True(t, take())
		}
		go write()
		err = w.wait(t.Context(), take)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, err)
	}
}
