// Package tuning is the small table of measured sizes at which one algorithm of a collective begins to beat another, on
// the host and on devices. `ubcoll tune` writes what it measures of it to a JSON file, which UBCOLL_TUNING names; the rest
// is the default, of the processor or of the build. All ranks must have the same file: Open compares the hashes.
package tuning

import (
	"fmt"

	"github.com/ubcoll/ubcoll/hw/cpu"
)

// Table is where algorithms cross over, in bytes.
type Table struct {
	Machine string // where it was measured; a table of another machine is allowed, and may be slow

	// EagerTotal is how much all ranks' sources together may have to travel with the descriptors.
	EagerTotal int
	// OneShotTotal is up to how much of all ranks' sources together an all-reduce has every rank read everything.
	OneShotTotal int
	// PushFrom is from which size an all-reduce has each rank write its slice to all destinations.
	PushFrom int
	// StreamFrom is from which size results are written past the caches.
	StreamFrom int
	// CombineUpTo is up to which size, of one rank's source, more than 16 ranks combine by group.
	CombineUpTo int

	// GPU is the same for devices.
	GPU GPU
}

// GPU is where algorithms on devices cross over, in bytes, and how many blocks their kernels have. The sizes are those
// of one rank's buffer, unless they say otherwise.
type GPU struct {
	// OneShotPair, OneShotFew and OneShotMany are up to which size an all-reduce or a reduce of 2, of 3 and 4, and of more
	// ranks has every rank send who wants the result its whole source as packets: the more ranks, the more each sends.
	OneShotPair, OneShotFew, OneShotMany int
	// TwoShotPackets is up to which size of the whole data the other reductions go by packets, in two steps.
	TwoShotPackets int
	// LinesPair and LinesMany are up to which size of the whole data reductions of 2 and of more ranks go by lines, if they
	// do not by packets; MoveLines is the same for what only moves data, between two ranks. 0: links do not carry them.
	LinesPair, LinesMany, MoveLines int
	// PushFrom is from which size of the whole data reductions push their sources, which is faster than reading them and
	// takes more rounds; PushScatterFrom is the same for a reduce-scatter. Below PushWideFrom they have PushBlocks blocks at
	// most, whose rounds are longer.
	PushFrom, PushScatterFrom, PushWideFrom, PushBlocks int
	// RingFrom is from which size an all-reduce of more than 2 ranks is a ring: a rank then writes to one other only,
	// which fills the link best.
	RingFrom int
	// MovePackets is up to which size between two ranks what only moves data goes by packets.
	MovePackets int
	// PassOnBeyond is how much more than one copy the root of a broadcast sends itself: beyond, ranks pass on what it
	// sends.
	PassOnBeyond int

	// PacketBlockBytes is what one block sends as packets at once. Kernels that send more have PacketBlocksMin blocks, or
	// as many as that takes, up to PacketBlocksMax, beyond which more do not help.
	PacketBlockBytes, PacketBlocksMin, PacketBlocksMax int
	// LineBlockBytes is how much one block sends another rank by lines before there are more blocks.
	LineBlockBytes int
	// BulkBlockBytes is how much the other kernels have for each block, of which they have up to BulkBlocksMax.
	BulkBlockBytes, BulkBlocksMax int
}

// WithoutLines is t where links do not carry lines whole: packets and bulk go further then, unless t was measured there.
func (t GPU) WithoutLines() GPU {
	if t.LinesPair == 0 && t.LinesMany == 0 && t.MoveLines == 0 {
		return t
	}
	t.LinesPair, t.LinesMany, t.MoveLines = 0, 0, 0
	t.OneShotPair, t.TwoShotPackets, t.MovePackets = 1<<20, 512<<10, 128<<10 // as far as rows of packets have room
	return t
}

// DefaultGPU is what was measured on H200s linked by NVSwitch (docs/benchmarks); what is for more than 4 ranks, LinesMany,
// and PassOnBeyond, a few microseconds of the root's link, are estimates.
func DefaultGPU() GPU {
	return GPU{
		OneShotPair: 128 << 10, OneShotFew: 128 << 10, OneShotMany: 32 << 10, TwoShotPackets: 256 << 10,
		LinesPair: 8 << 20, LinesMany: 4 << 20, MoveLines: 2 << 20,
		PushFrom: 8 << 20, PushScatterFrom: 256 << 20, PushWideFrom: 32 << 20, PushBlocks: 64, RingFrom: 64 << 20,
		MovePackets: 32 << 10, PassOnBeyond: 2 << 20,
		PacketBlockBytes: 4 << 10, // a packet of 8 bytes for each of 512 threads
		PacketBlocksMin:  16,      // one block took twice as long with more than one packet a thread
		PacketBlocksMax:  64,
		LineBlockBytes:   4 << 10,
		BulkBlockBytes:   16 << 10, BulkBlocksMax: 128,
	}
}

// Machine is a fingerprint of this machine, as far as tuning goes.
func Machine() string {
	return fmt.Sprintf("%s %s, last-level cache %d MiB", cpu.Vendor(), cpu.Level(), cpu.LastLevelCacheBytes()>>20)
}

// Default is what was measured on processors of this one's maker: Intel Sapphire Rapids, where a core is quick to write
// lines that its neighbour has, and AMD Zen 4, where it had better read them.
func Default() Table {
	cache := max(cpu.LastLevelCacheBytes(), 8<<20)
	t := Table{Machine: "default for " + cpu.Vendor(), EagerTotal: 4 << 10, OneShotTotal: 2 << 20,
		PushFrom: 1 << 20, StreamFrom: min(cache/4, 16<<20), CombineUpTo: 2 << 10, GPU: DefaultGPU()}
	if cpu.Vendor() == "GenuineIntel" {
		t.PushFrom = 0
	}
	return t
}

// sizes are those of the host by the names that files have for them.
func (t *Table) sizes() map[string]*int {
	return map[string]*int{"eager_total": &t.EagerTotal, "one_shot_total": &t.OneShotTotal, "push_from": &t.PushFrom,
		"stream_from": &t.StreamFrom, "combine_up_to": &t.CombineUpTo}
}

// Sizes are those of t by the names that files have for them. Numbers of blocks are not among them: they are the build's.
func (t *GPU) Sizes() map[string]*int {
	return map[string]*int{"one_shot_pair": &t.OneShotPair, "one_shot_few": &t.OneShotFew, "one_shot_many": &t.OneShotMany,
		"two_shot_packets": &t.TwoShotPackets, "lines_pair": &t.LinesPair, "lines_many": &t.LinesMany,
		"move_lines": &t.MoveLines, "push_from": &t.PushFrom, "push_scatter_from": &t.PushScatterFrom,
		"push_wide_from": &t.PushWideFrom, "ring_from": &t.RingFrom, "move_packets": &t.MovePackets,
		"pass_on_beyond": &t.PassOnBeyond}
}
