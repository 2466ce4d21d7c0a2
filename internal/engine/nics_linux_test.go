//go:build cgo

package engine_test

import (
	"errors"
	"log/slog"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/mem"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/register"
)

func bytesOf(a *mem.Allocation) team.Vec {
	return team.Vec{Ptr: a.Ptr, Len: a.Bytes, Type: dtype.Uint8, Alloc: a}
}

// adopted is n bytes that the test has mapped and c has adopted.
func adopted(t *testing.T, c *engine.Comm, n int) *mem.Allocation {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	a, err := c.Adopt(hw.Host, unsafe.Pointer(unsafe.SliceData(m)), n)
	require.NoError(t, err)
	return a
}

// nics returns how many regions the emulated devices have, and how many of them are open.
func nics(t *testing.T) []int { return []int{verbstest.Count(t, "mr"), verbstest.Count(t, "context")} }

// TestNICs: with UBCOLL_IB, NET has a rank's registrations, too, and they end with its communicators.
func TestNICs(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "2"}, func(t *testing.T) {
		comms, errs := enginetest.OpenOver(bootstrap.Local(2), engine.Options{})
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, []int{0, 4}, nics(t), "of each rank its own")
		c := comms[0]
		a, err := c.Alloc(hw.Host, 3*4096)
		require.NoError(t, err)
		r, err := c.RegisterBuffer(bytesOf(a))
		require.NoError(t, err)
		require.Equal(t, []int{2, 4}, nics(t))
		text := c.Explain(bytesOf(a))
		require.Regexp(t, `\n    NET complete: double0, double1: LOCAL_WRITE.*\n    NVLS absent: .*\n    COLLNET absent: .*\n    IPC complete`, text)

		b := adopted(t, c, 4096)
		s, err := c.RegisterWith(bytesOf(b), engine.RegisterOptions{Transports: engine.RDMA})
		require.NoError(t, err)
		require.Regexp(t, `\n    NET complete: .*(\n.*)+\n    IPC cannot use it: adopted memory`, c.Explain(bytesOf(b)))
		stats := c.Stats().Cache
		require.Equal(t, register.BackendStats{Complete: 2, Registered: 2}, stats.NET)
		require.Equal(t, register.BackendStats{Complete: 1, Registered: 1, Unsupported: 1}, stats.IPC)
		require.NoError(t, s.Close())
		require.NoError(t, c.Free(b))
		require.Equal(t, []int{2, 4}, nics(t))
		require.NoError(t, errors.Join(testkit.Each(comms, enginetest.Barrier)...))
		_ = r // ends with the communicator
		require.NoError(t, errors.Join(testkit.Each(comms, (*engine.Comm).Close)...))
		require.Equal(t, []int{0, 0}, nics(t))
	})
}

// TestNICsOff: ranks of one host do not pay for devices that they have not asked for, and Explain says how to ask.
func TestNICsOff(t *testing.T) {
	t.Setenv("UBCOLL_IB", "")
	verbstest.Over(t, nil, func(t *testing.T) {
		c := enginetest.Open(t, 1, engine.Options{})[0]
		a, err := c.Alloc(hw.Host, 4096)
		require.NoError(t, err)
		r, err := c.RegisterBuffer(bytesOf(a))
		require.NoError(t, err)
		require.Contains(t, c.Explain(bytesOf(a)), "\n    NET absent: UBCOLL_IB=auto, and all ranks are on one host: not supported\n")
		require.NoError(t, r.Close())
		_, err = c.RegisterWith(bytesOf(a), engine.RegisterOptions{Transports: engine.RDMA})
		require.ErrorIs(t, err, fault.ErrNotSupported)
		require.NoError(t, c.Free(a), "what was refused is still registered")
		require.Zero(t, verbstest.Count(t, "get_device_list"))
	})
}

// TestNICsLimited: memory for which the devices have no room is registered without them if there is another way, which
// is logged once; otherwise it is the limit's error.
func TestNICsLimited(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	verbstest.Over(t, verbstest.Knobs{"MEMLOCK": "8192"}, func(t *testing.T) {
		log, said := testkit.Logs(slog.LevelWarn)
		c := enginetest.Open(t, 1, engine.Options{Logger: log})[0]
		for range 2 {
			a, err := c.Alloc(hw.Host, 12288)
			require.NoError(t, err)
			r, err := c.RegisterBuffer(bytesOf(a))
			require.NoError(t, err)
			require.Regexp(t, `\n    NET failed: RDMA device double0, .*RLIMIT_MEMLOCK.*(\n.*)+\n    IPC complete`, c.Explain(bytesOf(a)))
			require.NoError(t, r.Close())
		}
		require.Regexp(t, `^[^\n]*RLIMIT_MEMLOCK[^\n]*\n$`, said.String())
		b := adopted(t, c, 12288)
		_, err := c.RegisterBuffer(bytesOf(b))
		require.ErrorIs(t, err, fault.ErrLimit)
		require.ErrorContains(t, err, "RLIMIT_MEMLOCK")
		require.NoError(t, c.Free(b))
		require.EqualValues(t, 3, c.Stats().Cache.NET.Failures)
	})
}

// TestNICsStubborn: if a device does not release a region, Close returns that, and the memory is not used again.
func TestNICsStubborn(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	verbstest.Over(t, nil, func(t *testing.T) {
		c := enginetest.Open(t, 1, engine.Options{})[0]
		for _, how := range []struct {
			name string
			do   func(a *mem.Allocation) error
		}{
			{"close", func(a *mem.Allocation) error {
				r, err := c.RegisterBuffer(bytesOf(a))
				require.NoError(t, err)
				err = r.Close()
				require.NoError(t, c.Free(a))
				return err
			}},
			{"free", func(a *mem.Allocation) error {
				used(t, c, bytesOf(a)).Release()
				return c.Free(a)
			}},
		} {
			a, err := c.Alloc(hw.Host, 4096)
			require.NoError(t, err)
			before := c.Stats().Memory.HeldBytes
			verbstest.Set(t, "FAIL", "dereg_mr:1:EBUSY")
			err = how.do(a)
			require.ErrorIs(t, err, unix.EBUSY, how.name)
			require.ErrorContains(t, err, "NET could not deregister")
			if !race.Enabled { // the race detector's heap is Go's, which never reuses memory that is still referenced
				require.Equal(t, before+4096, c.Stats().Memory.HeldBytes, how.name)
			}
		}
		require.NoError(t, c.Close(), "it lets go now")
		require.Equal(t, []int{0, 0}, nics(t))
	})
}

// TestNICsRequired: if devices are required and there is none, Open fails on all ranks and says why.
func TestNICsRequired(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	verbstest.Over(t, verbstest.Knobs{"DEVICES": "0"}, func(t *testing.T) {
		_, errs := enginetest.OpenOver(bootstrap.Local(2), engine.Options{})
		for _, err := range errs {
			require.ErrorIs(t, err, fault.ErrNotSupported)
			require.ErrorContains(t, err, "UBCOLL_IB=on: no RDMA device")
		}
	})
}
