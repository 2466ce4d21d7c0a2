package endings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Variables for kills while much is queued on devices.
const (
	VictimVar = "CONFORM_VICTIM" // the rank to be killed; it queues half of what the others do
	FullVar   = "CONFORM_FULL"   // 1: queue as much as real devices can take
)

// amount returns few, or many if the machine can take that.
func amount(few, many int) int {
	if os.Getenv(FullVar) == "1" {
		return many
	}
	return few
}

// KillQueuedEager queues 10,000 all-reduces of 64 KiB on a stream.
func KillQueuedEager(ctx context.Context, c *ubcoll.Comm) error {
	return queueUntilLost(ctx, c, amount(200, 10_000), amount(1000, 16<<10),
		func(s *ubcoll.Stream, b *ubcoll.Buffer[float32], _ *ubcoll.Registration) (func() error, error) {
			return func() error { return coll.AllReduce(ctx, c.On(s), b.Vec(), b.Vec(), ubcoll.Max) }, nil
		})
}

// KillQueuedGraph queues 1,000 launches of a graph of 100 all-reduces of 1 MiB.
func KillQueuedGraph(ctx context.Context, c *ubcoll.Comm) error {
	return queueUntilLost(ctx, c, amount(20, 1000), amount(1000, 256<<10),
		func(s *ubcoll.Stream, b *ubcoll.Buffer[float32], _ *ubcoll.Registration) (func() error, error) {
			g, err := graph.Capture(ctx, c.On(s), func(c *ubcoll.Comm) error {
				for range amount(10, 100) {
					if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Max); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			return func() error { return g.Launch(ctx) }, nil
		})
}

// KillQueuedMessages queues 1,000 messages of 64 MiB around the ring of ranks.
func KillQueuedMessages(ctx context.Context, c *ubcoll.Comm) error {
	n := amount(50_000, 16<<20)
	next, last := conform.Ring(c)
	return queueUntilLost(ctx, c, amount(100, 1000), 2*n,
		func(s *ubcoll.Stream, b *ubcoll.Buffer[float32], _ *ubcoll.Registration) (func() error, error) {
			return func() error {
				_, err := p2p.SendRecv(ctx, c.On(s), last, b.Vec().Slice(n, 2*n), next, b.Vec().Slice(0, n))
				return err
			}, nil
		})
}

// KillQueuedChannel queues 1,000 puts of 1 MiB around the ring of ranks, with signals and waits.
func KillQueuedChannel(ctx context.Context, c *ubcoll.Comm) error {
	n := amount(4000, 1<<20)
	next, last := conform.Ring(c)
	return queueUntilLost(ctx, c, amount(100, 1000), n/2,
		func(s *ubcoll.Stream, _ *ubcoll.Buffer[float32], r *ubcoll.Registration) (func() error, error) {
			to := map[int]*p2p.Channel{}
			for p := range c.Size() {
				if p != c.Rank() {
					ch, err := p2p.Connect(ctx, c, p, r)
					if err != nil {
						return nil, err
					}
					to[p] = ch.On(s)
				}
			}
			return func() error {
				if err := to[next].PutWithSignal(ctx, n, 0, n); err != nil {
					return err
				}
				return to[last].Wait(ctx)
			}, nil
		})
}

// queueUntilLost queues many calls of what prepare makes, on a stream, and waits for them. The victim queues half as
// many, and waits until it is killed. The others report as Kill does, and check that nothing can be queued any more.
func queueUntilLost(ctx context.Context, c *ubcoll.Comm, times, elements int, prepare func(s *ubcoll.Stream,
	b *ubcoll.Buffer[float32], r *ubcoll.Registration) (call func() error, err error)) error {
	victim, err := strconv.Atoi(os.Getenv(VictimVar))
	if err != nil {
		return fmt.Errorf("%s: %w", VictimVar, err)
	}
	dev, err := c.GPU()
	if err != nil {
		return err
	}
	b, err1 := ubcoll.Alloc[float32](c, dev, elements)
	s, err2 := ubcoll.NewStream(dev)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	r, err := c.RegisterBuffer(b.Vec())
	if err != nil {
		return err
	}
	call, err := prepare(s, b, r)
	if err != nil {
		return err
	}
	if err := testkit.InOrder(
		call,
		func() error { return s.Sync(ctx) },
		func() error { return coll.Barrier(ctx, c) }); err != nil { // everything is loaded
		return err
	}
	dir, err := ready(c)
	if err != nil {
		return err
	}
	if c.Rank() == victim {
		for i := 0; err == nil && i < times/2; i++ {
			err = call()
		}
		<-ctx.Done()
		return conform.Fail(c, "not killed: %w", errors.Join(err, ctx.Err()))
	}
	for i := 0; err == nil && i < times; i++ { // the driver takes about 1000; then calls wait
		err = call()
	}
	if err == nil {
		err = s.Sync(ctx)
	}
	if err == nil {
		return conform.Fail(c, "all is done, without rank %d", victim)
	}
	if werr := report(c, dir, err); werr != nil {
		return werr
	}
	if again := call(); again == nil || c.Err() == nil {
		return conform.Fail(c, "a broken communicator worked: %v", again)
	}
	return errors.Join(err, s.Sync(ctx))
}
