// Package tuning is the small table of measured sizes at which one algorithm of a collective becomes faster than
// another, on the host and on devices, of what moving data between hosts costs, and of how long a message may be that goes
// eager. `ubcoll tune` measures most of it and writes that to a JSON file, which UBCOLL_TUNING names. The rest has defaults,
// which depend on the processor or are built in. All ranks must have the same file: Open compares the hashes.
package tuning

import (
	"fmt"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/schedule"
)

// Table has the sizes at which the choice of algorithm changes, in bytes.
type Table struct {
	Machine string // where it was measured; a table of another machine works, but may be slow

	// EagerTotal: up to this size of all ranks' sources together, data may travel with the descriptors.
	EagerTotal int
	// OneShotTotal: up to this size of all ranks' sources together, every rank of an all-reduce reads everything.
	OneShotTotal int
	// PushFrom: from this size, each rank of an all-reduce writes its slice to all destinations.
	PushFrom int
	// StreamFrom: from this size, results are written past the caches.
	StreamFrom int
	// CombineUpTo: up to this size of one rank's source, more than 16 ranks combine in groups.
	CombineUpTo int

	// GPU has the same for devices.
	GPU GPU
	// Messages has the limits of messages.
	Messages Messages
	// Hosts is about the network. RDMA is what moving data there costs if all ranks have RDMA devices.
	Hosts Hosts
	RDMA  schedule.Model
}

// Hosts says how data move between hosts. Its default is the same on all processors, since all hosts must choose alike.
type Hosts struct {
	schedule.Model
	// Connections is how many connections two ranks have for data, from 1 to transport.MostConnections.
	Connections int
}

// DefaultHosts has one connection: each of them has to be polled, and one carries what a processor can copy.
func DefaultHosts() Hosts { return Hosts{Model: schedule.Default, Connections: 1} }

// Messages has the sizes, in bytes, of the longest messages that go eager: their Send does not wait for their Recv.
type Messages struct {
	// EagerFew, EagerSome and EagerMany: of host memory, in communicators of up to 16, of up to 128, and of more ranks.
	EagerFew, EagerSome, EagerMany int
	// EagerDevice: of device memory.
	EagerDevice int
}

// EagerHost is the limit of messages of host memory in a communicator of that many ranks.
func (m *Messages) EagerHost(ranks int) int {
	switch {
	case ranks <= 16:
		return m.EagerFew
	case ranks <= 128:
		return m.EagerSome
	}
	return m.EagerMany
}

// DeviceRoom is the room of MessageRoom for device memory: that of the kernels' boxes.
const DeviceRoom = 64 << 10

// MessageRoom returns what the boxes of messages have room for. It is the default, and a table's limits are not above
// it. A rank has boxes for each peer, which are smaller the more ranks there are.
func MessageRoom() Messages {
	return Messages{EagerFew: 2 << 10, EagerSome: 1 << 10, EagerMany: 256, EagerDevice: DeviceRoom}
}

// GPU has the sizes at which the choice of algorithm on devices changes, in bytes, and the numbers of blocks of
// kernels. A size is of one rank's buffer, unless its comment says otherwise.
type GPU struct {
	// OneShotPair, OneShotFew and OneShotMany: up to this size, each rank of an all-reduce or a reduce sends its whole
	// source as packets to every rank that gets the result. They are for 2, for 3 and 4, and for more ranks: with more
	// ranks each sends more.
	OneShotPair, OneShotFew, OneShotMany int
	// TwoShotPackets: up to this size of the whole data, the other reductions use packets, in two steps.
	TwoShotPackets int
	// LinesPair and LinesMany: up to this size of the whole data, reductions of 2 and of more ranks use lines, unless
	// they use packets. MoveLines: the same between two ranks, for operations that only move data. 0: links do not
	// carry lines.
	LinesPair, LinesMany, MoveLines int
	// PushFrom: from this size of the whole data, reductions push their sources; that is faster than to read peers'
	// sources, but takes more rounds. PushScatterFrom: the same for a reduce-scatter. Below PushWideFrom they have at
	// most PushBlocks blocks, because each round then moves more.
	PushFrom, PushScatterFrom, PushWideFrom, PushBlocks int
	// RingFrom: from this size, an all-reduce of more than 2 ranks uses a ring: each rank then writes to only one other
	// rank, which uses the link best.
	RingFrom int
	// MovePackets: up to this size between two ranks, operations that only move data use packets.
	MovePackets int
	// PassOnBeyond: the root of a broadcast sends up to this much more than one copy by itself; if it would have to
	// send more, the ranks pass data on.
	PassOnBeyond int
	// NVLSFrom: from this size of the whole data, operations use the communicator's multicast object, if it has one.
	NVLSFrom int

	// PacketBlockBytes: what one block sends as packets at a time. Kernels that send more have as many blocks as that
	// takes, at least PacketBlocksMin and at most PacketBlocksMax; more do not help.
	PacketBlockBytes, PacketBlocksMin, PacketBlocksMax int
	// LineBlockBytes: how much one block sends another rank by lines before there are more blocks.
	LineBlockBytes int
	// BulkBlockBytes: bytes for each block of the other kernels, which have at most BulkBlocksMax blocks.
	BulkBlockBytes, BulkBlocksMax int
	// NVLSBlocksMax: how many blocks of kernels that use a multicast object keep its links busy.
	NVLSBlocksMax int
}

// WithoutLines returns t for links that do not carry lines. Packets and bulk then serve more sizes, unless t was
// measured on such links.
func (t GPU) WithoutLines() GPU {
	if t.LinesPair == 0 && t.LinesMany == 0 && t.MoveLines == 0 {
		return t
	}
	t.LinesPair, t.LinesMany, t.MoveLines = 0, 0, 0
	t.OneShotPair, t.TwoShotPackets, t.MovePackets = 1<<20, 512<<10, 128<<10 // as far as rows of packets have room
	return t
}

// DefaultGPU was measured on H200s linked by NVSwitch (docs/benchmarks). Estimated are: the sizes for more than 4
// ranks, LinesMany, and PassOnBeyond, which is a few microseconds of the root's link. NVLSFrom and NVLSBlocksMax are from
// what others have measured; nothing of ours has run on multicast objects.
func DefaultGPU() GPU {
	return GPU{
		OneShotPair: 128 << 10, OneShotFew: 128 << 10, OneShotMany: 32 << 10, TwoShotPackets: 256 << 10,
		LinesPair: 8 << 20, LinesMany: 4 << 20, MoveLines: 2 << 20,
		PushFrom: 8 << 20, PushScatterFrom: 256 << 20, PushWideFrom: 32 << 20, PushBlocks: 64, RingFrom: 64 << 20,
		MovePackets: 32 << 10, PassOnBeyond: 2 << 20, NVLSFrom: 256 << 10,
		PacketBlockBytes: 4 << 10, // a packet of 8 bytes for each of 512 threads
		PacketBlocksMin:  16,      // one block took twice as long with more than one packet per thread
		PacketBlocksMax:  64,
		LineBlockBytes:   4 << 10,
		BulkBlockBytes:   16 << 10, BulkBlocksMax: 128,
		NVLSBlocksMax: 32,
	}
}

// Machine returns a fingerprint of this machine, for tuning.
func Machine() string {
	return fmt.Sprintf("%s %s, last-level cache %d MiB", cpu.Vendor(), cpu.Level(), cpu.LastLevelCacheBytes()>>20)
}

// Default was measured on processors of this one's maker: Intel Sapphire Rapids, where a core quickly writes lines that
// are in its neighbour's cache, and AMD Zen 4, where it is better to read them.
func Default() Table {
	cache := max(cpu.LastLevelCacheBytes(), 8<<20)
	t := Table{Machine: "default for " + cpu.Vendor(), EagerTotal: 4 << 10, OneShotTotal: 2 << 20,
		PushFrom: 1 << 20, StreamFrom: min(cache/4, 16<<20), CombineUpTo: 2 << 10, GPU: DefaultGPU(),
		Messages: MessageRoom(), Hosts: DefaultHosts(), RDMA: schedule.DefaultRDMA}
	if cpu.Vendor() == "GenuineIntel" {
		t.PushFrom = 0
	}
	return t
}

// sizes returns the host's sizes by their names in files.
func (t *Table) sizes() map[string]*int {
	return map[string]*int{"eager_total": &t.EagerTotal, "one_shot_total": &t.OneShotTotal, "push_from": &t.PushFrom,
		"stream_from": &t.StreamFrom, "combine_up_to": &t.CombineUpTo}
}

// sizes returns m's sizes by their names in files.
func (m *Messages) sizes() map[string]*int {
	return map[string]*int{"eager_few": &m.EagerFew, "eager_some": &m.EagerSome, "eager_many": &m.EagerMany,
		"eager_device": &m.EagerDevice}
}

// Between is what moving data between hosts costs, over RDMA or over TCP.
func (t *Table) Between(rdma bool) *schedule.Model {
	if rdma {
		return &t.RDMA
	}
	return &t.Hosts.Model
}

// Assumed reports whether these are the defaults: ubcoll tune has not measured them.
func (t *Table) Assumed(rdma bool) bool {
	return *t.Between(rdma) == *(&Table{Hosts: DefaultHosts(), RDMA: schedule.DefaultRDMA}).Between(rdma)
}

// prices returns a model's numbers by their names in files.
func prices(m *schedule.Model) map[string]*int {
	return map[string]*int{"agree_ns": &m.Agree, "message_ns": &m.Message, "send_ps": &m.Send, "swap_ps": &m.Swap,
		"combine_ps": &m.Combine, "relay_ps": &m.Relay, "around_ps": &m.Around}
}

// numbers returns h's numbers by their names in files.
func (h *Hosts) numbers() map[string]*int {
	all := prices(&h.Model)
	all["connections"] = &h.Connections
	return all
}

// Sizes returns t's sizes by their names in files. Numbers of blocks are not among them: they belong to the build.
func (t *GPU) Sizes() map[string]*int {
	return map[string]*int{"one_shot_pair": &t.OneShotPair, "one_shot_few": &t.OneShotFew, "one_shot_many": &t.OneShotMany,
		"two_shot_packets": &t.TwoShotPackets, "lines_pair": &t.LinesPair, "lines_many": &t.LinesMany,
		"move_lines": &t.MoveLines, "push_from": &t.PushFrom, "push_scatter_from": &t.PushScatterFrom,
		"push_wide_from": &t.PushWideFrom, "ring_from": &t.RingFrom, "move_packets": &t.MovePackets,
		"pass_on_beyond": &t.PassOnBeyond, "nvls_from": &t.NVLSFrom}
}
