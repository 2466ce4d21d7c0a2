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

// The most of what makes lists that grow with it.
const (
	maxIterations = 10_000_000 // the time of each is kept
	maxSizes      = 100_000
	maxQueued     = 50_000_000 // operations that follow each other on a stream
	workBytes     = 2 * int(unsafe.Sizeof(team.Work{}))
)

// held is how many operations are prepared before the first of them runs, in a call of this size.
func (c *Config) held(bytes int) int {
	n := c.Aggregate
	if c.queued() {
		_, timed := c.calls(bytes)
		n = product(n, product(timed, max(1, c.Graphs)))
	}
	return n
}

// product is a*b, or a number that is too large for everything if no int holds that. Negative numbers, which Validate
// has its own words for, are just multiplied.
func product(a, b int) int {
	const most = 1 << 62
	if b > 0 && a > most/b {
		return most
	}
	return a * b
}

// memory is what a rank needs for c on the host.
func (c *Config) memory(op *operation) int {
	parts := 2 // also where the buffers are on a device, of which the host has copies
	if op.open != nil && c.Device != CUDA {
		parts = op.parts
	}
	_, timed := c.calls(c.MinBytes)
	if c.Iterations == 0 && c.MinTime > 0 {
		timed = mostByTime
	}
	return max(product(parts, c.MaxBytes), product(workBytes, c.held(c.MinBytes)), product(8, timed))
}

// Room is an error, the same on all ranks, that wraps ubcoll.ErrLimit, if the ranks of some host, each of which needs
// bytes of host memory for what, need more than there is. Nobody has taken anything by then: a machine that runs out of
// memory ends processes. Collective.
func Room(ctx context.Context, c *ubcoll.Comm, what string, bytes int) error {
	free := []int64{int64(shm.FreeMemory())}
	if err := coll.AllReduce(ctx, c, ubcoll.Of(free), ubcoll.Of(free), ubcoll.Min); err != nil {
		return err
	}
	return room(what, bytes, c.LocalSize(), int(free[0]))
}

func room(what string, bytes, ranks, free int) error {
	if product(bytes, ranks) <= free {
		return nil
	}
	return fmt.Errorf("%s: %d ranks on a host need %d MiB each, and %d MiB can be had there (MemAvailable, or the control "+
		"group's limit): ask for less, or start fewer ranks: %w", what, ranks, bytes>>20, free>>20, ubcoll.ErrLimit)
}
