// Package tuning is the small table of measured sizes at which one algorithm of a collective begins to beat another, on
// the host and on devices. A table is a JSON file that `ubcoll tune` writes and UBCOLL_TUNING names; without one, there
// is a default for the processor. All ranks must have the same: Open compares the hashes.
package tuning

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/env"
)

// Version is the version of the format.
const Version = 1

// Table is where algorithms cross over, in bytes.
type Table struct {
	Version int    `json:"version"`
	Machine string `json:"machine"` // where it was measured; a table of another machine is allowed, and may be slow

	// EagerTotal is how much all ranks' sources together may have to travel with the descriptors.
	EagerTotal int `json:"eager_total"`
	// OneShotTotal is up to how much of all ranks' sources together an all-reduce has every rank read everything.
	OneShotTotal int `json:"one_shot_total"`
	// PushFrom is from which size an all-reduce has each rank write its slice to all destinations.
	PushFrom int `json:"push_from"`
	// StreamFrom is from which size results are written past the caches.
	StreamFrom int `json:"stream_from"`
	// CombineUpTo is up to which size, of one rank's source, more than 16 ranks combine by group.
	CombineUpTo int `json:"combine_up_to"`

	// GPU is the same for devices. No file has it, since nothing measures it yet: it is that of the build.
	GPU GPU `json:"-"`
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

// WithoutLines is t where links do not carry lines whole: packets and bulk go further then.
func (t GPU) WithoutLines() GPU {
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
	t := Table{Version: Version, Machine: "default for " + cpu.Vendor(), EagerTotal: 4 << 10, OneShotTotal: 2 << 20,
		PushFrom: 1 << 20, StreamFrom: min(cache/4, 16<<20), CombineUpTo: 2 << 10, GPU: DefaultGPU()}
	if cpu.Vendor() == "GenuineIntel" {
		t.PushFrom = 0
	}
	return t
}

// Validate reports all that is wrong with t.
func (t Table) Validate() error {
	var errs []error
	if t.Version != Version {
		errs = append(errs, fmt.Errorf("version is %d, this build reads %d: %w", t.Version, Version, fault.ErrArgument))
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"eager_total", t.EagerTotal}, {"one_shot_total", t.OneShotTotal}, {"push_from", t.PushFrom},
		{"stream_from", t.StreamFrom}, {"combine_up_to", t.CombineUpTo}} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: %w", f.name, f.value, fault.ErrArgument))
		}
	}
	return errors.Join(errs...)
}

// Parse reads a table; name is for errors. Unknown keys are errors.
func Parse(name string, data []byte) (Table, error) {
	t := Table{GPU: DefaultGPU()}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return t, fmt.Errorf("tuning table %s: %w: %w", name, err, fault.ErrArgument)
	}
	if err := t.Validate(); err != nil {
		return t, fmt.Errorf("tuning table %s: %w", name, err)
	}
	return t, nil
}

// Load is the table that UBCOLL_TUNING names, or the default.
func Load() (Table, error) {
	name, err := env.Tuning.Get()
	if err != nil || name == "" {
		return Default(), err
	}
	data, err := read(name)
	if err != nil {
		return Default(), fmt.Errorf("tuning table (%s): %w", env.Tuning.Name, err)
	}
	return Parse(name, data)
}

// maxFile is more than any table has.
const maxFile = 64 << 10

// read is a file of tables' size. What is no file may have no end, or nobody who writes it.
func read(name string) ([]byte, error) {
	if i, err := os.Stat(name); err != nil {
		return nil, err
	} else if !i.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: name one that ubcoll tune wrote: %w", name, fault.ErrArgument)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes: name a table that ubcoll tune wrote: %w", name, maxFile, fault.ErrLimit)
	}
	return data, err
}

// Bytes is the table as a file.
func (t Table) Bytes() []byte {
	b, _ := json.MarshalIndent(t, "", "  ") // plain values: it cannot fail
	return append(b, '\n')
}

// Hash is short, and differs if what ranks must decide alike differs. How a rank writes its results is its own affair,
// and its default depends on the caches of the processor that it is bound to.
func (t Table) Hash() string {
	t.Machine, t.StreamFrom = "", 0
	sum := sha256.Sum256(t.Bytes())
	return hex.EncodeToString(sum[:8])
}

// Agreed is what all ranks must have alike of t, which Load has returned: the hash of a file. Defaults may differ between
// hosts: those of one host's ranks are the same, and nothing between hosts depends on them.
func Agreed(t Table) string {
	if name, _ := env.Tuning.Get(); name == "" {
		return "default"
	}
	return t.Hash()
}
