//go:build nvls && linux && cgo && (amd64 || arm64)

package kernels

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/race"
)

// multicast binds each rank's memory to one object: first its staging memory, then its source and its destination. They
// get the same places in it.
func (w *world) multicast() {
	const part = 4 << 20
	size := StagingBytes + 2*part
	var objects []*cuda.Multicast
	n := len(w.ranks)
	for r, m := range w.ranks {
		mem, err := m.ctx.Create(size)
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, m.ctx.Release(mem)) })
		m.own, err = m.ctx.ReserveAligned(size, 2<<20)
		require.NoError(w.t, err)
		own := m.own
		w.t.Cleanup(func() { require.NoError(w.t, m.ctx.Unreserve(own, size)) })
		require.NoError(w.t, m.ctx.Map(m.own, size, mem))
		w.t.Cleanup(func() { require.NoError(w.t, m.ctx.Unmap(own, size)) })
		require.NoError(w.t, m.ctx.Access(m.own, size, m.ctx.Device()))
		m.staging, m.src, m.dst = m.own, m.own+StagingBytes, m.own+StagingBytes+part
		var object *cuda.Multicast
		if r == 0 {
			object, err = m.ctx.CreateMulticast(n, size)
		} else {
			var fd int
			fd, err = objects[0].Export()
			require.NoError(w.t, err)
			object, err = m.ctx.ImportMulticast(fd, n, size)
			require.NoError(w.t, unix.Close(fd))
		}
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, object.Close()) })
		require.NoError(w.t, object.AddDevice())
		objects = append(objects, object)
	}
	for r, m := range w.ranks {
		object := objects[r]
		require.NoError(w.t, object.BindAddr(0, m.own, size))
		w.t.Cleanup(func() { require.NoError(w.t, object.Unbind(0, size)) })
		at, err := object.Map()
		require.NoError(w.t, err)
		m.multi = at
		w.t.Cleanup(func() { require.NoError(w.t, object.Unmap()) })
	}
}

// TestNVLS runs the kernels for multicast on emulated devices, for every operation and type.
func TestNVLS(t *testing.T) {
	emulated.NVLS(t)
	for n := 2; n <= 4; n++ {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			w := newWorld(t, n)
			w.multicast()
			for _, m := range w.ranks {
				require.NoError(t, m.set.LoadNVLS(t.Context()))
			}
			times := 12
			if race.Enabled || testing.Short() {
				times = 1
			}
			w.runNVLS(times)
		})
	}
}
