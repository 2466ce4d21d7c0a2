//go:build linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// TestKernels runs a kernel of the library on two devices. Before that, they need access to each other's memory.
func TestKernels(t *testing.T) {
	run := func(t *testing.T, access bool) (errs [2]error, failed [2]uint32) {
		const size = 64 << 20
		var cs [2]*cuda.Context
		var ss [2]*cuda.Stream
		var fs [2]*cuda.Function
		var ps [2]kernels.Params
		var status [2]*kernels.Status
		for r := range cs {
			cs[r], ss[r] = device(t, r)
			m, err := cs[r].LoadModule(".version 8.1\n.visible .entry ubc_barrier(\n")
			require.NoError(t, err)
			t.Cleanup(func() { m.Close() })
			fs[r], err = m.Function("ubc_barrier")
			require.NoError(t, err)
			area, err := cs[r].Alloc(size)
			require.NoError(t, err)
			require.NoError(t, ss[r].Fill(area, 0, size))
			require.NoError(t, ss[r].Sync())
			page := mapping(t)
			at, err := cs[r].HostRegister(page, 4096)
			require.NoError(t, err)
			t.Cleanup(func() { cs[r].HostUnregister(page) }) // fails in a broken context
			status[r], ps[r].Status = (*kernels.Status)(page), uint64(at)
			ps[r].Rank, ps[r].Ranks, ps[r].Timeout, ps[r].Signature = uint32(r), 2, uint64(testkit.Limit), 2<<59
			ps[r].Area[0], ps[1-r].Area[1] = uint64(area), uint64(area) // by distance
		}
		if access {
			require.NoError(t, cs[0].EnablePeer(cs[1]))
			require.NoError(t, cs[1].EnablePeer(cs[0]))
		}
		for range 50 {
			for r, f := range fs {
				if errs[r] == nil {
					errs[r] = f.Launch(ss[r], cuda.Launch{Grid: 2, Block: f.MaxThreads}, kernels.Bytes(&ps[r]))
				}
			}
		}
		for r := range errs {
			if errs[r] == nil {
				errs[r] = ss[r].Sync()
			}
			failed[r] = status[r].Error.Load()
		}
		return errs, failed
	}
	t.Run("with access", func(t *testing.T) {
		errs, failed := run(t, true)
		require.Equal(t, [2]error{}, errs)
		require.Equal(t, [2]uint32{}, failed)
	})
	t.Run("without", func(t *testing.T) {
		errs, _ := run(t, false)
		for _, err := range errs {
			var e *cuda.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "CUDA_ERROR_ILLEGAL_ADDRESS", e.Name)
		}
	})
}
