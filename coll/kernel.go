package coll

import (
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/engine"
	cudakernels "github.com/ubcoll/ubcoll/internal/gpu/kernels"
)

// Sizes at which the algorithms on devices change, as measured on H200s linked by NVSwitch (docs/benchmarks).
const (
	oneShotPair   = 1 << 20 // all-reduce by one-shot, 2 ranks; more ranks push more
	oneShotMany   = 128 << 10
	oneShotCrowd  = 32 << 10  // more than 4 ranks, estimated
	packetsTotal  = 512 << 10 // two-shot by packets
	movePackets   = 128 << 10
	packetThread  = 8        // bytes that a thread puts into a packet
	fullBlock     = 512      // threads that blocks are meant for
	packetBlocks  = 64       // more do not help packets
	bulkBlocks    = 128      // of the algorithms that fill the link
	pushFrom      = 8 << 20  // reductions push their sources, which is faster than reading them and takes more rounds
	pushLong      = 32 << 20 // by all blocks; below, fewer blocks have longer rounds
	pushBlocks    = 64
	ringFrom      = 64 << 20 // by ring, more than 2 ranks: it writes to one rank only, which fills the link best
	bulkBlockData = 16 << 10 // less than that a block is not worth it
)

// rootOnce is how many bytes beyond one copy a broadcast's root sends itself, estimated: a few microseconds of its link.
const rootOnce = 2 << 20

// kernel chooses how w goes on the device: a pure function of what all ranks agree on.
func kernel(c *engine.Comm, w *engine.Work) engine.Kernel {
	bytes, n := w.Count*w.Type.Size(), c.Size()
	switch {
	case w.Kind == engine.KindBarrier:
		return engine.Kernel{Name: cudakernels.Barrier, Blocks: 1, Algorithm: "descriptors"}
	case isReduction(w.Kind):
		return reduceKernel(c.Options().Algorithm, w.Kind, w.Type, bytes, n)
	case isVector(w.Kind):
		return engine.Kernel{Name: cudakernels.MoveV, Blocks: countsGrid(w, n), Algorithm: "push by counts", Words: true,
			Counts: true}
	case bytes <= movePackets:
		return engine.Kernel{Name: cudakernels.MovePackets, Blocks: packetGrid(bytes * n), Algorithm: "push packets"}
	}
	if w.Kind == engine.KindBroadcast && bytes*(n-2) > rootOnce {
		return engine.Kernel{Name: cudakernels.Broadcast, Blocks: bulkGrid(bytes), Algorithm: "passed on", Words: true}
	}
	return engine.Kernel{Name: cudakernels.Move, Blocks: bulkGrid(bytes * n), Algorithm: "push", Words: true}
}

// countsGrid is how many blocks an operation with vectors of counts has. Ranks whose counts do not fit may come to
// different numbers, since no block then waits for one of its number.
func countsGrid(w *engine.Work, n int) int {
	total := w.Dst.Bytes()
	switch {
	case w.Kind != engine.KindAllGatherV:
		return engine.CountsBlocks
	case total <= movePackets*n:
		return packetGrid(total)
	}
	return bulkGrid(total)
}

// reduceKernel is kernel for reductions of so many bytes: of a slice for reduce-scatter, else of the whole.
func reduceKernel(algorithm string, k engine.Kind, t dtype.Type, bytes, n int) engine.Kernel {
	slice, total := ((bytes+n-1)/n+15)&^15, bytes // slices end on multiples of 16 bytes
	if k == engine.KindReduceScatter {
		slice, total = bytes, bytes*n
	}
	fits := k == engine.KindAllReduce && bytes <= cudakernels.PacketData
	oneShotMost := oneShotMany
	switch {
	case n == 2:
		oneShotMost = oneShotPair
	case n > 4:
		oneShotMost = oneShotCrowd
	}
	half := t == dtype.Float16 || t == dtype.BFloat16 // a ring rounds at every step
	ring := algorithm == "ring" || algorithm == "" && bytes >= ringFrom && n > 2 && !half
	switch {
	case ring && k == engine.KindAllReduce:
		return engine.Kernel{Name: cudakernels.Ring, Blocks: bulkGrid(total), Algorithm: "ring", Words: true}
	case algorithm == "push", algorithm == "" && total >= pushFrom:
		blocks := bulkGrid(total)
		if total < pushLong {
			blocks = min(blocks, pushBlocks)
		}
		return engine.Kernel{Name: cudakernels.TwoShot, Blocks: blocks, Push: true, Algorithm: "two-shot, pushed",
			Words: true}
	case algorithm == "one-shot" && fits, algorithm != "two-shot" && fits && bytes <= oneShotMost:
		return engine.Kernel{Name: cudakernels.OneShot, Blocks: packetGrid(bytes), Algorithm: "one-shot packets"}
	case algorithm != "two-shot" && total <= packetsTotal && slice <= cudakernels.PacketData:
		return engine.Kernel{Name: cudakernels.Packets, Blocks: packetGrid(total), Algorithm: "two-shot packets"}
	}
	return engine.Kernel{Name: cudakernels.TwoShot, Blocks: bulkGrid(total), Algorithm: "two-shot", Words: true}
}

// packetGrid is how many blocks send so many bytes in packets: one while each of its threads has one packet. Beyond, one
// block took twice as long as many.
func packetGrid(bytes int) int {
	blocks := (bytes + packetThread*fullBlock - 1) / (packetThread * fullBlock)
	if blocks <= 1 {
		return 1
	}
	return min(max(blocks, 16), packetBlocks)
}

// bulkGrid is how many blocks move so many bytes.
func bulkGrid(bytes int) int { return min(max(bytes/bulkBlockData, 1), bulkBlocks) }
