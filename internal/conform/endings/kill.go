// Package endings has the suites of how jobs end: ranks that are killed, leave early, fail, panic, or get a signal.
package endings

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// Kill reduces without end, from registered and from Go memory in turn, until a peer is lost. Then it writes the rank
// that its error names, and the time, to a file of its own. The test kills some rank at some moment and reads the
// files.
func Kill(ctx context.Context, c *ubcoll.Comm) error {
	return untilLost(c, func(v ubcoll.Vec) error { return coll.AllReduce(ctx, c, v, v, ubcoll.Max) })
}

// KillFirst is Kill, but the rank that a file in CONFORM_DIR names kills itself, some microseconds after it has begun to
// allocate for its first operation: while the others import this memory, if they are quick.
func KillFirst(ctx context.Context, c *ubcoll.Comm) error {
	dir, err := conform.Dir()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(VictimFile(dir))
	if err != nil {
		return err
	}
	var victim, after int
	if _, err := fmt.Sscan(string(b), &victim, &after); err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() == victim {
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		time.AfterFunc(time.Duration(after)*time.Microsecond, func() { self.Kill() })
	}
	return callUntilLost(c, dir, func(int) error {
		b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 4<<20) // of an arena that is new
		if err != nil {
			return err
		}
		return coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Max)
	})
}

// KillP2P is Kill with messages around the ring.
func KillP2P(ctx context.Context, c *ubcoll.Comm) error {
	next, last := conform.Ring(c)
	dst := make([]float32, 300000)
	return untilLost(c, func(v ubcoll.Vec) error {
		_, err := p2p.SendRecv(ctx, c, last, ubcoll.Of(dst), next, v)
		return err
	})
}

// untilLost reports that this rank is ready, and makes calls from registered and from Go memory in turn until a peer is
// lost. From then on no call may work.
func untilLost(c *ubcoll.Comm, call func(v ubcoll.Vec) error) error {
	dir, err := ready(c) // before Alloc, so that a kill can hit that
	if err != nil {
		return err
	}
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 300000)
	if err != nil {
		return err
	}
	vecs := []ubcoll.Vec{b.Vec(), ubcoll.Of(make([]float32, 50000))}
	var v ubcoll.Vec
	err = callUntilLost(c, dir, func(k int) error {
		v = vecs[k%2]
		return call(v)
	})
	if c.Err() != nil {
		if again := call(v); again == nil {
			return conform.Fail(c, "a broken communicator worked after %v", err)
		}
	}
	return err
}

// callUntilLost calls until a peer is lost, and reports that in dir.
func callUntilLost(c *ubcoll.Comm, dir string, call func(k int) error) (err error) {
	for k := 0; err == nil; k++ {
		err = call(k)
	}
	if werr := report(c, dir, err); werr != nil {
		return werr
	}
	if c.Err() == nil {
		return conform.Fail(c, "the communicator is not broken after %v", err)
	}
	return err
}
