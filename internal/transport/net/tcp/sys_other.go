//go:build !linux

package tcp

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	again       = syscall.EAGAIN
	interrupted = syscall.EINTR
)

type iovec struct {
	p unsafe.Pointer
	n int
}

func element(p unsafe.Pointer, n int) iovec { return iovec{p, n} }

func readable(int) bool { return true }

func receive(int, unsafe.Pointer, int) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

func skip(int, int) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

func gather(int, []iovec) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

func send(int, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

type scatter struct{}

func (scatter) send(int, []iovec) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

func retries(int) (uint64, bool) { return 0, false }

func outstanding(int) int { return 0 }

func unanswered(int) (bool, time.Duration) { return false, 0 }

func shutdown(int) {}

func closeFd(int) {}
