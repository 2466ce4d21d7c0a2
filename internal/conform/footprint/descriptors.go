package footprint

import (
	"context"
	"os"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Descriptors makes many communicators of ranks that one communicator has already reached. Each rank holds one
// descriptor for each peer's process, however many communicators there are.
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
	if n < c.Size()-1 || n > c.Size() { // the Go runtime may have one of its own
		return conform.Fail(c, "%d descriptors of processes with %d communicators of %d ranks", n, len(comms), c.Size())
	}
	for _, k := range comms[1:] {
		if err := k.Close(); err != nil {
			return err
		}
	}
	return coll.Barrier(ctx, c)
}
