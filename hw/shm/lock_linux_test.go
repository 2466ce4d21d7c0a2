package shm

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// ordinary runs f on a thread that may not lock more than RLIMIT_MEMLOCK, and sets that to n bytes meanwhile.
func ordinary(t *testing.T, n uint64, f func()) {
	t.Helper()
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
	if was.Max < n {
		t.Skipf("the limit is %d bytes", was.Max)
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: was.Max}))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was)
	done := make(chan error)
	go func() {
		var err error
		defer func() { done <- err }()
		runtime.LockOSThread() // never unlocked, so the thread ends with this goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err = unix.Capget(&header, &caps[0]); err != nil {
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
		if err = unix.Capset(&header, &caps[0]); err == nil {
			f()
		}
	}()
	require.NoError(t, <-done)
}

func TestLock(t *testing.T) {
	f, err := Create("lock", 64*PageSize)
	require.NoError(t, err)
	defer f.Close()
	p, err := f.Map(0, 64*PageSize, true)
	require.NoError(t, err)
	defer Unmap(p, 64*PageSize)
	ordinary(t, uint64(16*PageSize), func() {
		before := testkit.Status("VmLck")
		err := Lock(p, 64*PageSize)
		assert.ErrorIs(t, err, fault.ErrLimit)
		assert.ErrorContains(t, err, fmt.Sprintf("%d bytes", 64*PageSize))
		assert.ErrorContains(t, err, fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes for all of the process, of which %d are locked: "+
			"raise it to %d or more (`ulimit -l`, ", 16*PageSize, before, before+64*PageSize))
		assert.Equal(t, before, testkit.Status("VmLck"), "a failure leaves something locked")
		assert.NoError(t, Lock(p, 8*PageSize))
		assert.Equal(t, before+8*PageSize, testkit.Status("VmLck"))
		assert.NoError(t, Unlock(p, 8*PageSize))
		assert.Equal(t, before, testkit.Status("VmLck"))
	})
}

// What mlock says does not tell its own limit from that on mappings.
func TestLockLimit(t *testing.T) {
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
	ordinary(t, uint64(16*PageSize), func() {
		assert.Contains(t, lockLimit(0), "and has room: there may be too many mappings (`sysctl vm.max_map_count`)")
		assert.Contains(t, lockLimit(1<<40), "raise it to ")
	})
	if was.Max == unix.RLIM_INFINITY {
		ordinary(t, unix.RLIM_INFINITY, func() {
			assert.Equal(t, "RLIMIT_MEMLOCK is unlimited: there may be too many mappings (`sysctl vm.max_map_count`)", lockLimit(1<<40))
		})
	}
}
