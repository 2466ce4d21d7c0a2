package engine_test

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/enginetest"
	"github.com/ubcoll/ubcoll/internal/team"
)

// A buffer that peers cannot reach is staged. Its registration, of which there is no use, is not kept in use.
func TestAcquireWithoutHandle(t *testing.T) {
	c := enginetest.Open(t, 1, engine.Options{})[0]
	x, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	a, err := c.Adopt(hw.Host, unsafe.Pointer(&x[0]), 4096)
	require.NoError(t, err)
	v := team.Vec{Ptr: a.Ptr, Len: a.Bytes, Type: dtype.Uint8, Alloc: a}
	for range 3 {
		var b team.Buf
		require.NoError(t, c.Acquire(&v, &b, false))
		require.False(t, b.Direct())
		require.Contains(t, b.Why, "adopted memory has no file that peers could map")
	}
	require.Equal(t, 1, c.Stats().Cache.Regions)
	require.NoError(t, c.Free(a))
	require.Zero(t, c.Stats().Cache.Regions)
	require.NoError(t, syscall.Munmap(x))
}
