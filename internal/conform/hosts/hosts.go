// Package hosts has the suites for communicators that span hosts: everything that crosses hosts, in all ways and with
// every mistake, and everything that does not. On one host they do the same, except for Refused, which does nothing
// there.
package hosts

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// named is a suite and its name.
type named struct {
	name string
	run  conform.Suite
}

// suites are those of this folder, in the order in which Hosts runs them.
var suites = []named{{"places", Places}, {"barriers", Barriers}, {"reduce", Reduce}, {"broadcast", Broadcast}, {"blocks", Blocks},
	{"large", Large}, {"same bits", SameBits}, {"streams", Streams}, {"groups", Groups}, {"graphs", Graphs},
	{"families", Families}, {"wrong", Wrong}, {"refused", Refused}}

// Hosts runs all of them.
func Hosts(ctx context.Context, c *ubcoll.Comm) error {
	var all []conform.Suite
	for _, s := range suites {
		all = append(all, s.run)
	}
	return conform.Each(ctx, c, all...)
}

// Spans reports whether a communicator spans hosts.
func Spans(c *ubcoll.Comm) bool { return c.LocalSize() != c.Size() }

// draws returns two sources of random numbers: one that all ranks share, and one of this rank's own.
func draws(c *ubcoll.Comm, what uint64) (all, mine *rand.Rand) {
	return rand.New(rand.NewPCG(conform.Seed(), what)), rand.New(rand.NewPCG(conform.Seed(), 1000*what+uint64(c.Rank())+1))
}

// share gathers every rank's row of numbers.
func share(ctx context.Context, c *ubcoll.Comm, mine ...uint64) ([][]uint64, error) {
	n := len(mine)
	all := make([]uint64, n*c.Size())
	copy(all[n*c.Rank():], mine)
	if err := coll.AllReduce(ctx, c, ubcoll.Of(all), ubcoll.Of(all), ubcoll.Sum); err != nil {
		return nil, err
	}
	rows := make([][]uint64, c.Size())
	for r := range rows {
		rows[r] = all[n*r : n*(r+1)]
	}
	return rows, nil
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// Places checks on which hosts the ranks are reported to be.
func Places(ctx context.Context, c *ubcoll.Comm) error {
	rows, err := share(ctx, c, hash([]byte(c.Hostname(c.Rank()))), uint64(c.LocalRank()), uint64(c.LocalSize()))
	if err != nil {
		return err
	}
	here := 0
	for r, row := range rows {
		if name := c.Hostname(r); name == "" || hash([]byte(name)) != row[0] {
			return conform.Fail(c, "rank %d is said to be on %q, and says otherwise", r, name)
		}
		if row[0] != rows[c.Rank()][0] {
			continue
		}
		if row[1] != uint64(here) || row[2] != uint64(c.LocalSize()) {
			return conform.Fail(c, "rank %d is the %d-th of this rank's %d, and says that it is %d of %d", r, here,
				c.LocalSize(), row[1], row[2])
		}
		here++
	}
	if here != c.LocalSize() {
		return conform.Fail(c, "%d ranks here, and LocalSize is %d", here, c.LocalSize())
	}
	return nil
}

// Barriers makes one rank after the other late: no rank may leave before it has come. It checks this only if all ranks
// are on one machine and so share a clock.
func Barriers(ctx context.Context, c *ubcoll.Comm) error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	for k := range 2 * c.Size() {
		if c.Rank() == k%c.Size() {
			time.Sleep(time.Millisecond)
		}
		entered := clock()
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		left := clock()
		rows, err := share(ctx, c, hash(boot), entered)
		if err != nil {
			return err
		}
		for r, row := range rows {
			if row[0] == rows[c.Rank()][0] && row[1] > left {
				return conform.Fail(c, "barrier %d: left %d ns before rank %d entered", k, row[1]-left, r)
			}
		}
	}
	return nil
}

func fail(c *ubcoll.Comm, what fmt.Stringer, err error) error {
	if err == nil {
		return nil
	}
	return conform.Fail(c, "%v: %w", what, err)
}
