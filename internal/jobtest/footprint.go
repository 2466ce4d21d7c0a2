package jobtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/await"
)

// foot is what this process has: descriptors, mappings, goroutines and resident memory.
type foot struct{ fds, maps, routines, kib int }

func footprint() (f foot, err error) {
	debug.FreeOSMemory()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return f, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return f, err
	}
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return f, err
	}
	var size, rss int
	_, err = fmt.Sscan(string(b), &size, &rss)
	return foot{len(es), bytes.Count(maps, []byte("\n")), runtime.NumGoroutine(), rss * os.Getpagesize() / 1024}, err
}

// settled waits until this process has no more than most.
func settled(ctx context.Context, c *ubcoll.Comm, most foot) error {
	for start := time.Now(); ; { // what is ending takes its time to
		after, err := footprint()
		if err != nil {
			return err
		}
		if after.fds <= most.fds && after.maps <= most.maps && after.routines <= most.routines && after.kib <= most.kib {
			return coll.Barrier(ctx, c)
		}
		if time.Since(start) > await.Limit/4 {
			return fail(c, "%+v, which should be at most %+v", after, most)
		}
	}
}

// Churn registers and deregisters, allocates and frees 100,000 times, and checks that descriptors, mappings,
// goroutines and resident memory have not grown.
func Churn(ctx context.Context, c *ubcoll.Comm) error {
	round := func(k int) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 4096*(1+k%3))
		if err != nil {
			return err
		}
		b.Slice()[k%4096] = 1
		for i := 0; i < 10; i++ {
			r, err := c.RegisterBuffer(b.Vec().Slice(i, 1000+i))
			if err != nil {
				return err
			}
			if err := r.Close(); err != nil {
				return err
			}
		}
		return b.Free()
	}
	// First as many rounds as it takes for the Go heap to find its size, on all ranks, which may share the process.
	for k := 0; k < 1000; k++ {
		if err := round(k); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	before, err := footprint()
	if err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	for k := 0; k < 10000; k++ {
		if err := round(k); err != nil {
			return fail(c, "round %d: %w", k, err)
		}
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	before.maps, before.kib = before.maps+8, before.kib+8<<10 // the Go heap adds to the mappings now and then
	return settled(ctx, c, before)
}

// Descriptors makes many communicators of the ranks that one has already reached: each rank holds one descriptor of each
// peer's process, whatever their number.
func Descriptors(ctx context.Context, c *ubcoll.Comm) error {
	comms := []*ubcoll.Comm{c}
	for k := range 16 {
		from := comms[k/2]
		child, err := from.Dup(ctx)
		if k%2 == 1 && err == nil {
			comms = append(comms, child)
			child, err = from.Split(ctx, 0, -from.Rank())
		}
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, child); err != nil {
			return err
		}
		comms = append(comms, child)
	}
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range es {
		if link, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(link, "pidfd") {
			n++
		}
	}
	if n < c.Size()-1 || n > c.Size() { // the Go runtime may have one
		return fail(c, "%d descriptors of processes with %d communicators of %d ranks", n, len(comms), c.Size())
	}
	for _, k := range comms[1:] {
		if err := k.Close(); err != nil {
			return err
		}
	}
	return coll.Barrier(ctx, c)
}
