package register

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
)

// vault is a Locker for tests, with room for a number of bytes.
type vault struct {
	mu     sync.Mutex
	room   int
	tries  int
	locked map[Memory]int
	unlock error
}

func (v *vault) Lock(m Memory) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tries++
	if v.locked[m] == 0 {
		if m.Bytes > v.room {
			return fmt.Errorf("no room for %d bytes: %w", m.Bytes, fault.ErrLimit)
		}
		v.room -= m.Bytes
	}
	v.locked[m]++
	return nil
}

func (v *vault) Unlock(m Memory) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.locked[m] == 0 {
		panic("unlocked what is not locked")
	}
	if v.locked[m]--; v.locked[m] == 0 {
		v.room += m.Bytes
		delete(v.locked, m)
	}
	return v.unlock
}

func newVault(room int) *vault { return &vault{room: room, locked: map[Memory]int{}} }

// Memory is locked with its first registration, and unlocked with its last.
func TestLocked(t *testing.T) {
	v := newVault(1 << 20)
	c := newCache(t, Config{Locker: v, PageSize: 4096})
	m := mem(1, 1, 0x10000, 5000)
	a, err := c.Register(m, m.Base, 100)
	require.NoError(t, err)
	require.Equal(t, 1, v.locked[m])
	require.Equal(t, int64(8192), c.Stats().PinnedBytes)
	require.Contains(t, c.Explain(m.Base, 100), "; locked in memory")
	b, err := c.Register(m, m.Base+4096, 100)
	require.NoError(t, err)
	use, err := b.Acquire()
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Equal(t, 1, v.locked[m], "an operation still uses it")
	use.Release()
	require.Empty(t, v.locked)
	require.Zero(t, c.Stats().PinnedBytes)

	auto, err := c.RegisterAuto(m, m.Base, 10)
	require.NoError(t, err)
	auto.Release()
	require.Equal(t, 1, v.locked[m])
	done := false
	require.NoError(t, c.Forget(m, func(err error) {
		require.NoError(t, err)
		require.Empty(t, v.locked, "before its owner frees it")
		done = true
	}))
	require.True(t, done)
}

// Memory that cannot be locked is registered all the same.
func TestNotLocked(t *testing.T) {
	gpu := mem(3, 1, 0x90000, 4096)
	gpu.Device = hw.CUDA(0)
	for _, tt := range []struct {
		name   string
		m      Memory
		config Config
		why    string
	}{
		{"no room", mem(1, 1, 0x10000, 8192), Config{Locker: newVault(4096)}, "not locked in memory: no room for 8192 bytes"},
		{"a device's", gpu, Config{Locker: newVault(1 << 20)}, ""},
		{"nobody locks", mem(1, 1, 0x10000, 8192), Config{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCache(t, tt.config)
			r, err := c.Register(tt.m, tt.m.Base, 100)
			require.NoError(t, err)
			require.Zero(t, c.Stats().PinnedBytes)
			require.NotZero(t, c.Stats().RegisteredBytes)
			if tt.why == "" {
				require.NotContains(t, c.Explain(tt.m.Base, 100), "locked")
			} else {
				require.Contains(t, c.Explain(tt.m.Base, 100), tt.why)
			}
			require.NoError(t, r.Close())
		})
	}
	t.Run("not registered either", func(t *testing.T) {
		v := newVault(1 << 20)
		c := newCache(t, Config{Locker: v, Backends: []Backend{&fake{kind: IPC, regErr: errFake}}})
		m := mem(1, 1, 0x10000, 8192)
		_, err := c.Register(m, m.Base, 100)
		require.ErrorIs(t, err, errFake)
		require.Empty(t, v.locked)
	})
	t.Run("unlocking fails", func(t *testing.T) {
		v := newVault(1 << 20)
		v.unlock = errFake
		c := newCache(t, Config{Locker: v})
		m := mem(1, 1, 0x10000, 8192)
		r, err := c.Register(m, m.Base, 100)
		require.NoError(t, err)
		require.ErrorIs(t, r.Close(), errFake)
		require.Zero(t, c.Stats().PinnedBytes)
	})
}

// A limit on registered memory also limits locked memory.
func TestLockedWithinTheLimit(t *testing.T) {
	v := newVault(1 << 30)
	c := newCache(t, Config{Locker: v, PageSize: 4096, MaxBytes: 3 * 4096})
	for i := range 10 {
		m := mem(uint64(i+1), 1, uintptr(0x10000*(i+1)), 4096)
		cl, err := c.RegisterAuto(m, m.Base, 4096)
		require.NoError(t, err)
		cl.Release()
		require.Len(t, v.locked, min(i+1, 3))
		require.Equal(t, int64(min(i+1, 3)*4096), c.Stats().PinnedBytes)
	}
}
