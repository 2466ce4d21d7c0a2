//go:build linux && cgo && (amd64 || arm64)

package verbs

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/fdtrace"
)

// waiter waits until a descriptor of the library is readable, without blocking a thread.
type waiter struct {
	turn   chan struct{} // full while a goroutine waits
	file   *os.File
	fd     int
	closed atomic.Bool
}

// newWaiter makes fd non-blocking, and keeps its own duplicate of it.
func newWaiter(fd int, name string) (*waiter, error) {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	own, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("fcntl", errno)
	}
	fdtrace.Open(int(own), "duplicate of "+name)
	return &waiter{turn: make(chan struct{}, 1), file: os.NewFile(own, name), fd: int(own)}, nil
}

// wait calls try, and again whenever the descriptor is readable, until try returns true or ctx ends. If another
// goroutine waits already, it waits for its turn first, until ctx ends.
func (w *waiter) wait(ctx context.Context, try func() bool) error {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := w.file.SetReadDeadline(time.Time{})
	if err == nil {
		ended := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			w.file.SetReadDeadline(time.Unix(1, 0))
			close(ended)
		})
		defer func() {
			if !stop() {
				<-ended // else it might set the deadline of the next goroutine's wait
			}
		}()
		var raw syscall.RawConn
		if raw, err = w.file.SyscallConn(); err == nil {
			err = raw.Read(func(uintptr) bool { return try() })
		}
	}
	switch {
	case err != nil && w.closed.Load():
		return fault.ErrClosed
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

func (w *waiter) close() {
	w.closed.Store(true)
	fdtrace.Close(w.fd)
	w.file.Close()
}
