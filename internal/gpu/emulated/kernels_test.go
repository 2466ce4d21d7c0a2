//go:build linux && cgo && (amd64 || arm64)

package emulated_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/await"
)

// kernelParams is ubc_params of ../kernels/src/abi.h.
type kernelParams struct {
	area, table                                     [8]cuda.Addr
	status, src, dst                                cuda.Addr
	srcWord, dstWord, signature, count, timeout     uint64
	factor                                          float64
	rank, ranks, reduction, root, elemBytes, pushes uint32
}

// TestKernels runs a kernel of the library on two devices, which must have access to each other's memory first.
func TestKernels(t *testing.T) {
	run := func(t *testing.T, access bool) (errs [2]error, failed [2]uint32) {
		const size = 64 << 20
		var cs [2]*cuda.Context
		var ss [2]*cuda.Stream
		var fs [2]*cuda.Function
		var ps [2]kernelParams
		var words [2]unsafe.Pointer // status
		for r := range cs {
			cs[r], ss[r] = device(t, r)
			m, err := cs[r].LoadModule(".version 8.1\n.visible .entry ubc_barrier(\n")
			require.NoError(t, err)
			t.Cleanup(func() { m.Close() })
			if fs[r], err = m.Function("ubc_barrier"); err != nil {
				t.Skip("the kernels are not in this tree: ", err)
			}
			area, err := cs[r].Alloc(size)
			require.NoError(t, err)
			require.NoError(t, ss[r].Fill(area, 0, size))
			require.NoError(t, ss[r].Sync())
			words[r] = mapping(t)
			ps[r].status, err = cs[r].HostRegister(words[r], 4096)
			require.NoError(t, err)
			t.Cleanup(func() { cs[r].HostUnregister(words[r]) }) // fails in a broken context
			ps[r].rank, ps[r].ranks, ps[r].timeout, ps[r].signature = uint32(r), 2, uint64(await.Limit), 2<<59
			ps[r].area[0], ps[1-r].area[1] = area, area // by distance
		}
		if access {
			require.NoError(t, cs[0].EnablePeer(cs[1]))
			require.NoError(t, cs[1].EnablePeer(cs[0]))
		}
		for range 50 {
			for r, f := range fs {
				p := unsafe.Slice((*byte)(unsafe.Pointer(&ps[r])), unsafe.Sizeof(ps[r]))
				if errs[r] == nil {
					errs[r] = f.Launch(ss[r], cuda.Launch{Grid: 2, Block: f.MaxThreads}, p)
				}
			}
		}
		for r := range errs {
			if errs[r] == nil {
				errs[r] = ss[r].Sync()
			}
			failed[r] = *(*uint32)(unsafe.Add(words[r], 4))
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
