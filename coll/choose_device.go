package coll

import (
	"github.com/ubcoll/ubcoll/dtype"
	cudakernels "github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/tuning"
)

// chooseKernel chooses how w runs on the devices of a team of n ranks. asked is the algorithm that the team asked for, or
// ""; data is how many bytes of packet data a rank's row holds. It is a pure function of what the ranks agree on.
func chooseKernel(t *tuning.GPU, asked string, w *team.Work, n, data int) team.Kernel {
	bytes := w.Count * w.Type.Size()
	switch {
	case w.Kind == team.KindBarrier:
		return team.Kernel{Name: cudakernels.Barrier, Blocks: 1, Algorithm: "descriptors"}
	case isReduction(w.Kind):
		return chooseReduceKernel(t, asked, w.Kind, w.Type, bytes, n, data)
	case isVector(w.Kind):
		return team.Kernel{Name: cudakernels.MoveV, Blocks: countsBlocks(t, w, n, data), Algorithm: "push by counts",
			DirectAccess: true, Counts: true}
	case bytes <= min(t.MovePackets, data):
		return team.Kernel{Name: cudakernels.MovePackets, Blocks: packetBlocks(t, bytes*n), Algorithm: "push packets"}
	case n > 1 && bytes <= t.MoveLines || w.Kind == team.KindBroadcast && bytes <= t.LinesPair && n == 2:
		return team.Kernel{Name: cudakernels.MoveLines, Blocks: lineBlocks(t, bytes), Algorithm: "push lines", Lines: bytes}
	case w.Kind == team.KindBroadcast && bytes*(n-2) > t.PassOnBeyond:
		return team.Kernel{Name: cudakernels.Broadcast, Blocks: bulkBlocks(t, bytes), Algorithm: "passed on", DirectAccess: true}
	}
	return team.Kernel{Name: cudakernels.Move, Blocks: bulkBlocks(t, bytes*n), Algorithm: "push", DirectAccess: true}
}

// chooseMulticast chooses the kernel that does w through a multicast object, in a team that has one. Like chooseKernel it is
// a function of what the ranks agree on.
func chooseMulticast(t *tuning.GPU, asked string, w *team.Work, n int) (k team.Kernel, ok bool) {
	name, total := cudakernels.NVLSMove, w.Count*w.Type.Size()
	switch w.Kind {
	case team.KindAllReduce:
		name = cudakernels.NVLS
	case team.KindReduceScatter:
		name, total = cudakernels.NVLS, total*n
	case team.KindAllGather:
		total *= n
	case team.KindBroadcast:
	default:
		return k, false
	}
	if asked != "" || total < t.NVLSFrom || total == 0 ||
		name == cudakernels.NVLS && !cudakernels.NVLSReduces(w.Type, uint32(w.Red)) {
		return k, false
	}
	return team.Kernel{Name: name, Blocks: min(bulkBlocks(t, total), t.NVLSBlocksMax), Algorithm: "nvls", DirectAccess: true,
		Multicast: true}, true
}

// countsBlocks is how many blocks an operation with vectors of counts has. Ranks whose counts do not match may come to
// different numbers; that is safe because no block waits for the block with its number.
func countsBlocks(t *tuning.GPU, w *team.Work, n, data int) int {
	total := w.Dst.Bytes()
	switch {
	case w.Kind != team.KindAllGatherV:
		return team.CountsBlocks
	case total <= min(cudakernels.SmallPart, data)*n:
		return packetBlocks(t, total)
	}
	return bulkBlocks(t, total)
}

// chooseReduceKernel is chooseKernel for reductions. bytes is the size of a slice for reduce-scatter, else of the whole.
func chooseReduceKernel(t *tuning.GPU, asked string, k team.OpKind, typ dtype.Type, bytes, n, data int) team.Kernel {
	slice, total := ((bytes+n-1)/n+15)&^15, bytes // slices end on multiples of 16 bytes
	if k == team.KindReduceScatter {
		slice, total = bytes, bytes*n
	}
	fits := k != team.KindReduceScatter && bytes <= data
	oneShotMost, packets, lines, part := t.OneShotFew, t.TwoShotPackets, t.LinesMany, slice
	switch {
	case n <= 2:
		oneShotMost, lines = t.OneShotPair, t.LinesPair
		if k != team.KindReduceScatter { // in one step
			part = bytes
			if lines > 0 {
				packets = 0
			}
		}
	case n > cudakernels.Narrow:
		oneShotMost, packets = t.OneShotMany*cudakernels.Narrow/n, 0 // no two-shot by packets
	case n > 4:
		oneShotMost = t.OneShotMany
	}
	one := fits && bytes <= oneShotMost
	room, pushFrom := data/2, t.PushFrom // results have the other half of a row
	if k == team.KindReduceScatter {
		room, pushFrom = data, t.PushScatterFrom
	}
	two := total <= packets && slice <= room
	half := typ == dtype.Float16 || typ == dtype.BFloat16 // a ring rounds at every step
	none := asked == "" || asked == "ring"                // not every operation can be a ring
	ring := asked == "ring" || asked == "" && bytes >= t.RingFrom && n > 2 && !half
	switch {
	case ring && k == team.KindAllReduce && (n > 1 || typ != dtype.Bool): // with one rank it is a copy
		return team.Kernel{Name: cudakernels.Ring, Blocks: bulkBlocks(t, total), Algorithm: "ring", DirectAccess: true}
	case none && n > 1 && !one && !two && total <= lines:
		return team.Kernel{Name: cudakernels.Lines, Blocks: lineBlocks(t, part), Algorithm: "lines", Lines: part}
	case asked == "push", asked == "" && total >= pushFrom:
		blocks := bulkBlocks(t, total)
		if total < t.PushWideFrom {
			blocks = min(blocks, t.PushBlocks)
		}
		return team.Kernel{Name: cudakernels.TwoShot, Blocks: blocks, Push: true, Algorithm: "two-shot, pushed",
			DirectAccess: true}
	case asked == "one-shot" && fits, asked != "two-shot" && one:
		return team.Kernel{Name: cudakernels.OneShot, Blocks: packetBlocks(t, bytes), Algorithm: "one-shot packets"}
	case asked != "two-shot" && two:
		return team.Kernel{Name: cudakernels.Packets, Blocks: packetBlocks(t, total), Algorithm: "two-shot packets"}
	}
	return team.Kernel{Name: cudakernels.TwoShot, Blocks: bulkBlocks(t, total), Algorithm: "two-shot", DirectAccess: true}
}

// packetBlocks is how many blocks send that many bytes in packets.
func packetBlocks(t *tuning.GPU, bytes int) int {
	blocks := (bytes + t.PacketBlockBytes - 1) / t.PacketBlockBytes
	if blocks <= 1 {
		return 1
	}
	return min(max(blocks, t.PacketBlocksMin), t.PacketBlocksMax)
}

// lineBlocks is how many blocks send that many bytes to a rank by lines.
func lineBlocks(t *tuning.GPU, bytes int) int {
	return min(max((bytes+t.LineBlockBytes-1)/t.LineBlockBytes, 1), t.BulkBlocksMax)
}

// bulkBlocks is how many blocks move that many bytes.
func bulkBlocks(t *tuning.GPU, bytes int) int {
	return min(max(bytes/t.BulkBlockBytes, 1), t.BulkBlocksMax)
}
