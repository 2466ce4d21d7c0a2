package testkit

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Descriptors is the number of this process's open descriptors. It skips t if there is no /proc.
func Descriptors(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("needs /proc")
	}
	require.NoError(t, err)
	return len(d)
}

// Status returns a size from this process's /proc/self/status, such as "VmLck", in bytes.
func Status(name string) (n int) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(b), name+":")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		panic(name + ": " + err.Error())
	}
	return n << 10
}

// ResidentKiB returns how much of the mapping at p has been touched.
func ResidentKiB(t testing.TB, p unsafe.Pointer) (kib int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(b), fmt.Sprintf("\n%x-", uintptr(p)))
	require.True(t, ok)
	_, rest, _ = strings.Cut(rest, "\nRss:")
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(t, err)
	return kib
}

// ProcessorTime is how long this process has used processors. It says more than the clock if others use them, too.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Faults reports whether a read at p faults.
func Faults(p unsafe.Pointer) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() != nil }()
	b := *(*byte)(p)
	runtime.KeepAlive(b)
	return false
}
