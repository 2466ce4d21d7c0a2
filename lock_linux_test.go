package ubcoll_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Registered memory is locked as far as RLIMIT_MEMLOCK allows; Stats and Explain tell what is not locked, and why.
func TestRegisteredMemoryIsLocked(t *testing.T) {
	if race.Enabled {
		t.Skip("goroutine ranks have no memory files under the race detector")
	}
	const limit, large, small = 1 << 20, 16 << 20, 512 << 10
	limitLocks(t, limit)
	logger, out := testkit.Logs(slog.LevelInfo)

	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{Logger: logger}, func(_ context.Context, c *ubcoll.Comm) error {
		runtime.LockOSThread() // never unlocked: the thread ends with the rank
		if err := unprivileged(); err != nil {
			return err
		}
		before := int64(testkit.Status("VmLck"))
		for range 2 {
			for _, k := range []struct {
				bytes  int
				locked int64
				why    string
			}{
				{large, 0, "; not locked in memory: mlock of 16777216 bytes: "},
				{small, small, "; locked in memory"},
			} {
				b, err := ubcoll.Alloc[byte](c, ubcoll.Host, k.bytes)
				if err != nil {
					return err
				}
				r, err := c.RegisterBuffer(b.Vec().Slice(100, 200)) // registers the whole allocation
				if err != nil {
					return err
				}
				s := c.Stats().Cache
				if s.PinnedBytes != k.locked || s.RegisteredBytes != int64(k.bytes) ||
					int64(testkit.Status("VmLck"))-before != k.locked {
					return fmt.Errorf("%d of %d bytes are locked, the system says %d, want %d", s.PinnedBytes, s.RegisteredBytes,
						int64(testkit.Status("VmLck"))-before, k.locked)
				}
				if text := c.Explain(b.Vec()); !strings.Contains(text, k.why) {
					return fmt.Errorf("no %q in %s", k.why, text)
				}
				if k.locked > 0 {
					if err := unix.Madvise(b.Slice(), unix.MADV_PAGEOUT); err != unix.EINVAL {
						return fmt.Errorf("the system would page it out: %w", err)
					}
				}
				if err := r.Close(); err != nil {
					return err
				}
				if err := b.Free(); err != nil {
					return err
				}
				if n := int64(testkit.Status("VmLck")) - before; n != 0 || c.Stats().Cache.PinnedBytes != 0 {
					return fmt.Errorf("%d bytes stay locked", n)
				}
			}
		}
		return nil
	}))
	require.Equal(t, 1, strings.Count(out.String(), `level=INFO msg="ubcoll: registered memory is not locked`), "%s",
		out.String())
	require.Contains(t, out.String(), "ulimit -l")
}

// limitLocks sets RLIMIT_MEMLOCK until the test ends.
func limitLocks(t *testing.T, bytes uint64) {
	t.Helper()
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
	if was.Max < bytes {
		t.Skipf("the limit is %d bytes", was.Max)
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: was.Max}))
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was) })
}

// unprivileged makes RLIMIT_MEMLOCK bind this thread, whichever user runs the test.
func unprivileged() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	return unix.Capset(&header, &caps[0])
}
