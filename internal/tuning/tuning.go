// Package tuning is the small table of measured sizes at which one algorithm of a collective begins to beat another. A table
// is a JSON file that `ubcoll tune` writes and UBCOLL_TUNING names; without one, there is a default for the processor.
// All ranks must have the same: Open compares the hashes.
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

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/fault"
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
		PushFrom: 1 << 20, StreamFrom: min(cache/4, 16<<20), CombineUpTo: 2 << 10}
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
	var t Table
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
