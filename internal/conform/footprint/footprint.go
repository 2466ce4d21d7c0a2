// Package footprint has the suites that look at what a process holds: descriptors, mappings, goroutines and memory.
// These must not grow, however often something is made and ended.
package footprint

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// foot counts what this process holds: descriptors, mappings, goroutines and resident memory.
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

// awaitFootprint waits until this process holds no more than most.
func awaitFootprint(ctx context.Context, c *ubcoll.Comm, most foot) error {
	var after foot
	var err error
	done := testkit.UntilFor(testkit.Limit/4, func() bool { // what is ending takes some time
		after, err = footprint()
		return err != nil || after.fds <= most.fds && after.maps <= most.maps && after.routines <= most.routines &&
			after.kib <= most.kib
	})
	switch {
	case err != nil:
		return err
	case !done:
		return conform.Fail(c, "%+v, which should be at most %+v", after, most)
	}
	return coll.Barrier(ctx, c)
}
