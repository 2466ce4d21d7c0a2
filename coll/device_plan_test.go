package coll

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	cudakernels "github.com/ubcoll/ubcoll/hw/cuda/kernels"
	"github.com/ubcoll/ubcoll/internal/engine"
)

// TestReduceKernel looks at the choice of kernels, and that no choice is more than the kernel can do.
func TestReduceKernel(t *testing.T) {
	for _, k := range []struct {
		algorithm string
		kind      engine.Kind
		bytes, n  int
		want      string
	}{
		{"", engine.KindAllReduce, 0, 2, cudakernels.OneShot},
		{"", engine.KindAllReduce, 1 << 20, 2, cudakernels.OneShot},
		{"", engine.KindAllReduce, 1<<20 + 4, 2, cudakernels.TwoShot},
		{"", engine.KindAllReduce, 64 << 10, 4, cudakernels.OneShot},
		{"", engine.KindAllReduce, 64<<10 + 4, 4, cudakernels.Packets},
		{"", engine.KindAllReduce, 512 << 10, 4, cudakernels.Packets},
		{"", engine.KindAllReduce, 512<<10 + 4, 4, cudakernels.TwoShot},
		{"", engine.KindAllReduce, 32<<10 + 4, 8, cudakernels.Packets},
		{"", engine.KindReduce, 1000, 2, cudakernels.Packets},
		{"", engine.KindReduceScatter, 256 << 10, 2, cudakernels.Packets},
		{"", engine.KindReduceScatter, 256<<10 + 4, 2, cudakernels.TwoShot},
		{"one-shot", engine.KindAllReduce, 1 << 20, 4, cudakernels.OneShot},
		{"one-shot", engine.KindAllReduce, 4 << 20, 4, cudakernels.TwoShot},
		{"two-shot", engine.KindAllReduce, 8, 4, cudakernels.TwoShot},
		{"push", engine.KindAllReduce, 8, 4, cudakernels.TwoShot},
		{"ring", engine.KindAllReduce, 8, 4, cudakernels.Ring},
		{"ring", engine.KindAllReduce, 64 << 20, 2, cudakernels.Ring},
		{"ring", engine.KindReduce, 8, 4, cudakernels.Packets},
	} {
		t.Run(fmt.Sprintf("%s/%v/%d/%d", k.algorithm, k.kind, k.bytes, k.n), func(t *testing.T) {
			got := reduceKernel(k.algorithm, k.kind, k.bytes, k.n)
			require.Equal(t, k.want, got.Name)
			require.Equal(t, k.algorithm == "push", got.Push)
			require.Equal(t, k.want == cudakernels.TwoShot || k.want == cudakernels.Ring, got.Words)
		})
	}
	for n := 2; n <= cudakernels.MaxRanks; n++ {
		for bytes := 1; bytes < 16<<20; bytes += bytes/7 + 1 {
			for _, kind := range []engine.Kind{engine.KindAllReduce, engine.KindReduce, engine.KindReduceScatter} {
				got := reduceKernel("", kind, bytes, n)
				slice := bytes
				if kind != engine.KindReduceScatter {
					slice = ((bytes+n-1)/n + 15) / 16 * 16 // as kernels cut
				}
				require.True(t, got.Blocks >= 1 && got.Blocks <= cudakernels.MaxBlocks)
				if got.Name == cudakernels.OneShot {
					require.True(t, kind == engine.KindAllReduce && bytes <= cudakernels.PacketData)
				}
				if got.Name == cudakernels.Packets {
					require.LessOrEqual(t, slice, cudakernels.PacketData, "%v of %d bytes on %d ranks", kind, bytes, n)
				}
			}
		}
	}
}
