package bench

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/shm"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Limits on numbers with which lists grow.
const (
	maxIterations = 10_000_000 // the time of each is kept
	maxSizes      = 100_000
	maxQueued     = 50_000_000 // operations that are prepared at once, see held
	workBytes     = 2 * int(unsafe.Sizeof(team.Work{}))
)

// held returns how many operations are prepared before the first of them runs, for calls of this size.
func (c *Config) held(bytes int) int {
	n := c.Aggregate
	if c.queued() {
		_, timed := c.calls(bytes)
		n = product(n, product(timed, max(1, c.Graphs)))
	}
	return n
}

// product returns a*b, or, if that would overflow, a number that exceeds every limit. It just multiplies negative
// numbers, because Validate reports them itself.
func product(a, b int) int {
	const most = 1 << 62
	if b > 0 && a > most/b {
		return most
	}
	return a * b
}

// memory estimates how many bytes of host memory a rank needs for c.
func (c *Config) memory(op *operation) int {
	parts := 2 // also for buffers on a device: the host keeps copies of them
	if op.open != nil && c.Device != CUDA {
		parts = op.parts
	}
	_, timed := c.calls(c.MinBytes)
	if c.Iterations == 0 && c.MinTime > 0 {
		timed = mostByTime
	}
	return max(product(parts, c.MaxBytes), product(workBytes, c.held(c.MinBytes)), product(8, timed))
}

// CheckMemory returns an error that wraps ubcoll.ErrLimit if the ranks of some host need more host memory than it has.
// Each rank needs bytes; the error says that they are for what, and all ranks return the same. Call CheckMemory before
// allocating: a machine that runs out of memory kills processes. Collective.
func CheckMemory(ctx context.Context, c *ubcoll.Comm, what string, bytes int) error {
	share := []int64{int64(shm.FreeMemory() / c.LocalSize())}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(share), ubcoll.Of(share), ubcoll.Min); err != nil {
		return err
	}
	return room(what, bytes, int(share[0]))
}

func room(what string, bytes, share int) error {
	if bytes <= share {
		return nil
	}
	return fmt.Errorf("%s: each rank needs %d MiB, and a host has %d MiB for each of its ranks (MemAvailable, or the control "+
		"group's limit): ask for less, or start fewer ranks: %w", what, bytes>>20, share>>20, ubcoll.ErrLimit)
}
