package coll

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
	cudakernels "github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// TestChooseReduceKernel checks the choice of kernels, and that each chosen kernel can do the operation.
func TestChooseReduceKernel(t *testing.T) {
	gpu := tuning.DefaultGPU()
	const pushed = cudakernels.TwoShot + ", pushed"
	for _, k := range []struct {
		algorithm string
		kind      team.OpKind
		bytes, n  int
		want      string
	}{
		{"", team.KindAllReduce, 8 << 20, 2, cudakernels.Lines},
		{"", team.KindAllReduce, 8<<20 + 4, 2, pushed},
		{"", team.KindAllReduce, 1 << 30, 2, pushed},
		{"", team.KindAllReduce, 64<<20 - 4, 3, pushed},
		{"", team.KindAllReduce, 64 << 20, 3, cudakernels.Ring},
		{"", team.KindReduce, 64 << 20, 3, pushed},
		{"", team.KindReduceScatter, 4 << 20, 2, cudakernels.Lines},
		{"", team.KindReduceScatter, 4<<20 + 4, 2, cudakernels.TwoShot},
		{"", team.KindReduceScatter, 128 << 20, 2, pushed},
		{"two-shot", team.KindAllReduce, 64 << 20, 3, cudakernels.TwoShot},
		{"push", team.KindAllReduce, 64 << 20, 3, pushed},
		{"", team.KindAllReduce, 0, 2, cudakernels.OneShot},
		{"", team.KindAllReduce, 128 << 10, 2, cudakernels.OneShot},
		{"", team.KindAllReduce, 128<<10 + 4, 2, cudakernels.Lines},
		{"", team.KindAllReduce, 128 << 10, 4, cudakernels.OneShot},
		{"", team.KindAllReduce, 128<<10 + 4, 4, cudakernels.Packets},
		{"", team.KindAllReduce, 256 << 10, 4, cudakernels.Packets},
		{"", team.KindAllReduce, 256<<10 + 4, 4, cudakernels.Lines},
		{"", team.KindAllReduce, 4 << 20, 4, cudakernels.Lines},
		{"", team.KindAllReduce, 4<<20 + 4, 4, cudakernels.TwoShot},
		{"", team.KindAllReduce, 32<<10 + 4, 8, cudakernels.Packets},
		{"", team.KindReduce, 1000, 2, cudakernels.OneShot},
		{"", team.KindReduce, 1 << 20, 2, cudakernels.Lines},
		{"", team.KindReduce, 256 << 10, 4, cudakernels.Packets},
		{"", team.KindReduceScatter, 128 << 10, 2, cudakernels.Packets},
		{"", team.KindReduceScatter, 128<<10 + 4, 2, cudakernels.Lines},
		{"", team.KindAllReduce, 4, 1, cudakernels.OneShot},
		{"", team.KindAllReduce, 1 << 20, 1, cudakernels.TwoShot},
		{"one-shot", team.KindAllReduce, 128 << 10, 4, cudakernels.OneShot},
		{"one-shot", team.KindAllReduce, 1 << 20, 4, cudakernels.TwoShot},
		{"one-shot", team.KindAllReduce, 4 << 20, 4, cudakernels.TwoShot},
		{"two-shot", team.KindAllReduce, 8, 4, cudakernels.TwoShot},
		{"push", team.KindAllReduce, 8, 4, pushed},
		{"ring", team.KindAllReduce, 8, 4, cudakernels.Ring},
		{"ring", team.KindAllReduce, 64 << 20, 2, cudakernels.Ring},
		{"ring", team.KindReduce, 8, 4, cudakernels.OneShot},
		{"ring", team.KindReduce, 1 << 20, 4, cudakernels.Lines},
		{"one-shot", team.KindReduceScatter, 1 << 20, 2, cudakernels.TwoShot},
	} {
		t.Run(fmt.Sprintf("%s/%v/%d/%d", k.algorithm, k.kind, k.bytes, k.n), func(t *testing.T) {
			got := chooseReduceKernel(&gpu, k.algorithm, k.kind, dtype.Float32, k.bytes, k.n, room(k.n))
			name := got.Name
			if got.Push {
				name = pushed
			}
			require.Equal(t, k.want, name)
			require.Equal(t, got.Name == cudakernels.TwoShot || k.want == cudakernels.Ring, got.DirectAccess)
			half := chooseReduceKernel(&gpu, k.algorithm, k.kind, dtype.BFloat16, k.bytes, k.n, room(k.n))
			if k.want == cudakernels.Ring && k.algorithm == "" {
				require.True(t, half.Push)
			} else {
				require.Equal(t, got, half)
			}
		})
	}
	for n := 2; n <= cudakernels.MaxRanks; n++ {
		for bytes := 1; bytes < 16<<20; bytes += bytes/7 + 1 {
			for _, kind := range []team.OpKind{team.KindAllReduce, team.KindReduce, team.KindReduceScatter} {
				all := chooseReduceKernel(&gpu, "", kind, dtype.Float32, bytes, n, 1<<30)
				require.Equal(t, all, chooseReduceKernel(&gpu, "", kind, dtype.Float32, bytes, n, room(n)), "Open has room for all")
				data := cudakernels.Small(n).Data()
				got := chooseReduceKernel(&gpu, "", kind, dtype.Float32, bytes, n, data)
				slice := bytes
				if kind != team.KindReduceScatter {
					slice = ((bytes+n-1)/n + 15) / 16 * 16 // as kernels cut slices
				}
				require.True(t, got.Blocks >= 1 && got.Blocks <= cudakernels.MaxBlocks)
				if got.Name == cudakernels.OneShot {
					require.True(t, kind != team.KindReduceScatter && bytes <= data)
				}
				if got.Name == cudakernels.Packets {
					room := data / 2 // results have the other half of a row
					if kind == team.KindReduceScatter {
						room = data
					}
					require.LessOrEqual(t, slice, room, "%v of %d bytes on %d ranks", kind, bytes, n)
				}
			}
		}
	}
}

// TestChooseMoveKernel checks the choice of kernels for operations that only move data.
func TestChooseMoveKernel(t *testing.T) {
	gpu := tuning.DefaultGPU()
	for n := 2; n <= cudakernels.MaxRanks; n++ {
		require.LessOrEqual(t, gpu.MovePackets, room(n))
	}
	for _, k := range []struct {
		kind     team.OpKind
		bytes, n int
		want     string
		blocks   int
	}{
		{team.KindBarrier, 0, 2, cudakernels.Barrier, 1},
		{team.KindAllGather, 0, 2, cudakernels.MovePackets, 1},
		{team.KindAllGather, 2 << 10, 2, cudakernels.MovePackets, 1},
		{team.KindAllGather, 2<<10 + 4, 2, cudakernels.MovePackets, 16},
		{team.KindAllGather, 32 << 10, 2, cudakernels.MovePackets, 16},
		{team.KindAllGather, 32<<10 + 4, 2, cudakernels.MoveLines, 9},
		{team.KindAllToAll, 2 << 20, 2, cudakernels.MoveLines, 128},
		{team.KindAllToAll, 2<<20 + 4, 2, cudakernels.Move, 128},
		{team.KindBroadcast, 8 << 20, 2, cudakernels.MoveLines, 128},
		{team.KindBroadcast, 8<<20 + 4, 2, cudakernels.Move, 128},
		{team.KindAllGather, 1 << 20, 1, cudakernels.Move, 64},
		{team.KindBroadcast, 1 << 30, 2, cudakernels.Move, 128},
		{team.KindBroadcast, 2 << 20, 3, cudakernels.MoveLines, 128},
		{team.KindBroadcast, 2<<20 + 4, 3, cudakernels.Broadcast, 128},
		{team.KindBroadcast, 512 << 10, 8, cudakernels.MoveLines, 128},
		{team.KindBroadcast, 4 << 20, 8, cudakernels.Broadcast, 128},
		{team.KindGather, 1 << 30, 8, cudakernels.Move, 128},
		{team.KindAllGatherV, 256 << 10, 2, cudakernels.MoveV, 64},
		{team.KindAllGatherV, 256<<10 + 4, 2, cudakernels.MoveV, 16},
		{team.KindAllToAllV, 1 << 30, 2, cudakernels.MoveV, team.CountsBlocks},
	} {
		t.Run(fmt.Sprintf("%v/%d/%d", k.kind, k.bytes, k.n), func(t *testing.T) {
			v := team.Vec{Type: dtype.Float32, Len: k.bytes / 4}
			got := chooseKernel(&gpu, "", &team.Work{Kind: k.kind, Type: v.Type, Count: v.Len, Dst: v}, k.n, room(k.n))
			require.Equal(t, k.want, got.Name)
			require.Equal(t, k.blocks, got.Blocks)
			require.Equal(t, k.want == cudakernels.MoveV, got.Counts)
			lines := k.want == cudakernels.MoveLines
			require.Equal(t, !lines && k.want != cudakernels.Barrier && k.want != cudakernels.MovePackets, got.DirectAccess)
			require.Equal(t, lines, got.Lines > 0)
		})
	}
}

// room is how many bytes fit the rows of a communicator that Open makes.
func room(n int) int { return cudakernels.First(n).Data() }
