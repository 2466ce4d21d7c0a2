package shm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
)

// mapped returns how many bytes of [p, p+n) are mapped, and how many of those may be touched.
func mapped(t *testing.T, p unsafe.Pointer, n int) (all, open int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		var from, to uintptr
		var mode string
		_, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode)
		require.NoError(t, err, line)
		from, to = max(from, uintptr(p)), min(to, uintptr(p)+uintptr(n))
		if from < to {
			all += int(to - from)
			if mode[0] == 'r' {
				open += int(to - from)
			}
		}
	}
	return all, open
}

// A mapping over a reservation may fail after the kernel has removed what was there. Another thread may then get a
// mapping in the hole, which must not be replaced later.
func TestFailingMapLeavesNoHole(t *testing.T) {
	const n = 16
	p, err := Reserve(n * PageSize)
	require.NoError(t, err)
	defer Unmap(p, n*PageSize)
	// The kernel asks a socket whether it can be mapped only after it has made room.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := &File{fd: fd, ref: Ref{FD: fd, Size: n * PageSize}}
	defer f.Close()
	for _, c := range []struct {
		name    string
		page, n int
	}{{"first", 0, 1}, {"middle", 3, 5}, {"last", n - 1, 1}, {"all", 0, n}} {
		t.Run(c.name, func(t *testing.T) {
			require.Error(t, f.MapAt(unsafe.Add(p, c.page*PageSize), 0, c.n*PageSize))
			all, open := mapped(t, p, n*PageSize)
			require.Equal(t, n*PageSize, all, "the reservation has a hole")
			require.Zero(t, open)
		})
	}
}

// A failure before the kernel removes anything looks like a hole that another thread has filled.
func TestMapOverWhatIsThere(t *testing.T) {
	p, err := Reserve(2 * PageSize)
	require.NoError(t, err)
	defer Unmap(p, 2*PageSize)
	f := &File{fd: -1, ref: Ref{Size: 2 * PageSize}} // an invalid descriptor
	err = f.MapAt(p, 0, PageSize)
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorIs(t, err, ErrLost)
	err = f.MapAt(p, 0, 3*PageSize)
	require.ErrorIs(t, err, fault.ErrArgument)
	require.NotErrorIs(t, err, ErrLost, "nothing was tried")
	all, _ := mapped(t, p, 2*PageSize)
	require.Equal(t, 2*PageSize, all)
}
