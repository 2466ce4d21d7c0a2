package team

import (
	"fmt"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/race"
)

// What a rank needs before it has buffers, measured and rounded up: its first arena, and for each other rank of the job
// some memory and page tables. The map of another rank is one mapping or, with guards beside it, several.
const (
	rankBytes    = 4 << 20
	pairBytes    = 24 << 10
	pairMappings = 4
	spareMapping = 500 // for the Go runtime, its threads, and the libraries
)

// MaxRanks is the largest number of ranks: what signatures have room for, less one, because staging memory has a line
// for each rank and one for the result.
const MaxRanks = maxRoot

// CheckRanks returns fault.ErrLimit if this process cannot hold here goroutine ranks of a job of all ranks, so that no
// job starts that would run out of memory. Local.
func CheckRanks(here, all, attached int) error {
	return checkRanks(here, all, attached, shm.FreeMemory(), shm.MaxMappings())
}

func checkRanks(here, all, attached, free, mappings int) error {
	if all > MaxRanks {
		return fmt.Errorf("%d ranks, more than %d: %w", all, MaxRanks, fault.ErrLimit)
	}
	if need := pairMappings*here*(all-1) + spareMapping; need > mappings && !race.Enabled { // then areas are Go's
		return fmt.Errorf("%d goroutine ranks in a job of %d need about %d mappings, and a process may have %d: start fewer "+
			"in each of more processes, or raise it (`sysctl vm.max_map_count`): %w", here, all, need, mappings, fault.ErrLimit)
	}
	if need := here * (max(rankBytes, SharedBytes+attached) + all*pairBytes); need > free {
		return fmt.Errorf("%d goroutine ranks in a job of %d need about %d MiB before they have buffers, and %d MiB can be "+
			"had (MemAvailable, or the control group's limit): start fewer: %w", here, all, need>>20, free>>20, fault.ErrLimit)
	}
	return nil
}
