package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// One table in docs/errors.md says what the end of a context does. The tests here make the calls of its rows.

// ender is a call whose context ends.
type ender struct {
	name string
	told bool // if the context ended before the call, the peers return an error too
	do   func(ctx context.Context, c *ubcoll.Comm, n nouns) error
}

// collectives are the table's first row, except launches.
var collectives = []ender{
	{"a collective", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return coll.AllReduce(ctx, c, n.b.Vec(), n.b.Vec(), ubcoll.Max)
	}},
	{"a group with a collective", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
			return coll.AllReduce(context.Background(), g, n.b.Vec(), n.b.Vec(), ubcoll.Max)
		})
	}},
	{"RegisterWindow", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return testkit.ErrOf(c.RegisterWindow(ctx, n.b.Vec(), 0))
	}},
	{"Split", true, func(ctx context.Context, c *ubcoll.Comm, _ nouns) error { return testkit.ErrOf(c.Split(ctx, 0, 0)) }},
	{"Dup", true, func(ctx context.Context, c *ubcoll.Comm, _ nouns) error { return testkit.ErrOf(c.Dup(ctx)) }},
	{"Capture", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return testkit.ErrOf(graph.Capture(ctx, c, func(g *ubcoll.Comm) error {
			return coll.AllReduce(context.Background(), g, n.b.Vec(), n.b.Vec(), ubcoll.Max)
		}))
	}},
}

// messages wait for their peer, except a send of a small message.
var messages = []ender{
	{"Recv", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return testkit.ErrOf(p2p.Recv(ctx, c, 1-c.Rank(), n.b.Vec()))
	}},
	{"SendRecv", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		v := n.b.Vec()
		return testkit.ErrOf(p2p.SendRecv(ctx, c, 1-c.Rank(), v.Slice(0, 50), 1-c.Rank(), v.Slice(50, 100)))
	}},
	{"Exchange.Do", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		var x p2p.Exchange
		x.Recv(1-c.Rank(), n.b.Vec())
		return x.Do(ctx, c)
	}},
	{"a group of messages", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
			return testkit.ErrOf(p2p.Recv(context.Background(), g, 1-c.Rank(), n.b.Vec()))
		})
	}},
}

// oneSided are the calls on windows and channels: first those that wait for their peer, then the others.
func oneSided(dev ubcoll.Device) (waits, others []ender) {
	waits = []ender{
		{"Window.Wait", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error { return n.w.Wait(ctx, 1-c.Rank()) }},
		{"Channel.Wait", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.ch.Wait(ctx) }},
		{"Semaphore.Wait", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.p.Wait(ctx) }},
		{"Channel.GetPackets", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
			return n.ch.GetPackets(ctx, 64, 0, 8, p2p.Packet8)
		}},
		{"Channel.Batch", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
			return n.ch.Batch(ctx, func(b *p2p.Channel) error { return b.Wait(ctx) })
		}},
	}
	others = []ender{
		{"Window.Put", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
			return n.w.Put(ctx, 1-c.Rank(), 0, n.b.Vec().Slice(0, 1))
		}},
		{"Window.Get", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
			return n.w.Get(ctx, 1-c.Rank(), n.b.Vec().Slice(0, 1), 0)
		}},
		{"Window.Signal", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error { return n.w.Signal(ctx, 1-c.Rank()) }},
		{"Window.Flush", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.w.Flush(ctx) }},
		{"Channel.Put", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.ch.Put(ctx, 0, 0, 1) }},
		{"Channel.PutWithSignal", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
			return n.ch.PutWithSignal(ctx, 0, 0, 1)
		}},
		{"Channel.Get", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.ch.Get(ctx, 0, 0, 1) }},
		{"Channel.PutPackets", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
			return n.ch.PutPackets(ctx, 0, 64, 8, p2p.Packet8)
		}},
		{"Channel.Signal", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.ch.Signal(ctx) }},
		{"Channel.RelaxedSignal", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
			return n.ch.RelaxedSignal(ctx)
		}},
		{"Semaphore.Signal", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.p.Signal(ctx) }},
		{"Semaphore.RelaxedSignal", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
			return n.p.RelaxedSignal(ctx)
		}},
		{"Channel.Flush", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.ch.Flush(ctx) }},
	}
	return waits, others
}

var connects = []ender{
	{"NewSemaphore", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return testkit.ErrOf(p2p.NewSemaphore(ctx, c, 1-c.Rank(), n.b.Device()))
	}},
	{"Connect", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return testkit.ErrOf(p2p.Connect(ctx, c, 1-c.Rank(), n.r))
	}},
	{"NewChannel", true, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
		return testkit.ErrOf(p2p.NewChannel(ctx, c, n.r, n.m))
	}},
}

// onHostAndDevice runs f on two ranks, with memory of the host and of the emulated devices.
func onHostAndDevice(t *testing.T, f func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error) {
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			return f(ctx, c, ubcoll.Host)
		}))
	})
	t.Run("device", func(t *testing.T) { gputest.Run(t, 2, ubcoll.Options{}, f) })
}

// TestContextHasEnded makes calls with a context that has already ended: nothing is done, the error is the context's,
// and the communicator stays usable.
func TestContextHasEnded(t *testing.T) {
	onHostAndDevice(t, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		n, err := newNouns(ctx, c, dev)
		if err != nil {
			return err
		}
		waits, others := oneSided(dev)
		alone := append(append(append([]ender{}, messages...), waits...), others...)
		alone = append(alone, []ender{
			{"Send", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
				return p2p.Send(ctx, c, 1-c.Rank(), n.b.Vec())
			}},
			{"ISend", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
				return testkit.ErrOf(p2p.ISend(ctx, c, 1-c.Rank(), n.b.Vec()))
			}},
			{"IRecv", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
				return testkit.ErrOf(p2p.IRecv(ctx, c, 1-c.Rank(), n.b.Vec()))
			}},
			{"Exchange.Start", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
				var x p2p.Exchange
				x.Recv(1-c.Rank(), n.b.Vec())
				return testkit.ErrOf(x.Start(ctx, c))
			}},
			{"Buffer.CopyFrom", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
				return n.b.CopyFrom(ctx, []int8{1})
			}},
			{"Buffer.CopyTo", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error {
				return n.b.CopyTo(ctx, make([]int8, 1))
			}},
		}...)
		together := append(append([]ender{}, collectives...), connects...)
		launch := ender{"Launch", dev.IsHost(), func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.g.Launch(ctx) }}
		if launch.told {
			together = append(together, launch)
		} else {
			alone = append(alone, launch)
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		var errs []error
		for _, k := range alone {
			errs = append(errs, testkit.WantsOf(c.Rank(), k.name, k.do(over, c, n), context.Canceled))
		}
		for _, k := range together { // the context has ended on rank 0 alone
			now := ctx
			if c.Rank() == 0 {
				now = over
			}
			errs = append(errs, testkit.WantsOf(c.Rank(), k.name, k.do(now, c, n), context.Canceled))
		}
		now := ctx
		if c.Rank() == 0 {
			now = over
		}
		v := n.b.Vec()
		errs = append(errs, coll.AllReduce(now, c.On(n.s), v, v, ubcoll.Max), coll.AllReduce(ctx, c.On(n.s), v, v, ubcoll.Max),
			testkit.WantsOf(c.Rank(), "Sync", n.s.Sync(ctx), context.Canceled), // the first call's error, on both ranks
			testkit.WantsOf(c.Rank(), "a message on a stream", testkit.ErrOf(p2p.Recv(over, c.On(n.s), 1-c.Rank(), v)),
				context.Canceled))
		return errors.Join(append(errs, coll.Barrier(ctx, c), c.Err(), n.g.Launch(ctx), n.close())...)
	})
}

// ending is a context that ends a while after a call has begun to look at it.
type ending struct {
	context.Context
	look func()
}

func newEnding(parent context.Context) ending {
	ctx, cancel := context.WithCancel(parent)
	return ending{ctx, sync.OnceFunc(func() { time.AfterFunc(50*time.Millisecond, cancel) })}
}

func (e ending) Err() error {
	e.look()
	return e.Context.Err()
}

func (e ending) Done() <-chan struct{} {
	e.look()
	return e.Context.Done()
}

// TestContextEndsBreaks ends rank 0's context while rank 0 waits for rank 1, which only makes barriers: the
// communicator breaks on both.
func TestContextEndsBreaks(t *testing.T) {
	onHostAndDevice(t, func(ctx context.Context, parent *ubcoll.Comm, dev ubcoll.Device) error {
		all := append(append([]ender{}, collectives...), messages...)
		all = append(all, ender{"Launch", false, func(ctx context.Context, _ *ubcoll.Comm, n nouns) error { return n.g.Launch(ctx) }},
			ender{"Request.Wait", false, func(ctx context.Context, c *ubcoll.Comm, n nouns) error {
				r, err := p2p.IRecv(context.Background(), c, 1-c.Rank(), n.b.Vec())
				if err != nil {
					return err
				}
				return errors.Join(testkit.Wants(r.Wait(ctx), context.Canceled), r.Wait(ctx)) // the same error again
			}})
		for _, k := range testkit.Sample(3, all) {
			c, err := parent.Dup(ctx)
			if err != nil {
				return err
			}
			n, err := newNouns(ctx, c, dev)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			var e *ubcoll.Error
			if c.Rank() == 0 {
				err = testkit.WantsOf(0, k.name, k.do(newEnding(ctx), c, n), context.Canceled)
			} else {
				for err = c.Err(); err == nil; err = c.Err() { // it hears of rank 0's failure when it looks
					_, _ = p2p.Recv(ctx, c, 0, ubcoll.Of(make([]byte, 1)))
				}
				peer := errors.As(err, &e) && e.Peer == 0
				if err = testkit.WantsOf(1, k.name, err, ubcoll.ErrAborted); err == nil && !peer {
					err = fmt.Errorf("%s: %v is not about rank 0", k.name, e)
				}
			}
			if err = errors.Join(err, coll.Barrier(ctx, parent)); err != nil {
				return err
			}
			if c.Err() == nil {
				return fmt.Errorf("%s: the communicator is usable", k.name)
			}
			if err := errors.Join(n.s.Close(), c.Close(), coll.Barrier(ctx, parent)); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		return nil
	})
}

// TestContextEndsWait ends a context in calls whose wait breaks nothing.
func TestContextEndsWait(t *testing.T) {
	onHostAndDevice(t, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		waits, _ := oneSided(dev)
		for _, k := range append(waits, connects...) {
			n, err := newNouns(ctx, c, dev)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			if c.Rank() == 0 {
				err = testkit.WantsOf(0, k.name, k.do(newEnding(ctx), c, n), context.Canceled)
			}
			if err = errors.Join(err, coll.Barrier(ctx, c), c.Err()); err != nil {
				return err
			}
			if k.told { // the peer makes the call that rank 0 has given up
				if c.Rank() == 1 {
					err = testkit.WantsOf(1, k.name, k.do(ctx, c, n), ubcoll.ErrClosed)
				}
			} else if c.Rank() == 0 && !dev.IsHost() { // the window or channel has ended
				if again := k.do(ctx, c, n); again == nil || errors.Is(again, ubcoll.ErrTimeout) {
					err = fmt.Errorf("%s again: %v", k.name, again)
				}
			}
			if err = errors.Join(err, coll.Barrier(ctx, c), c.Err(), n.close()); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		// Ending Sync's context does not end the queued operations.
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		b, err := ubcoll.Alloc[int8](c, dev, 10)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			err = testkit.InOrder(
				func() error { return coll.AllReduce(ctx, c.On(s), b.Vec(), b.Vec(), ubcoll.Max) },
				func() error { return testkit.WantsOf(0, "Sync", s.Sync(newEnding(ctx)), context.Canceled) },
				func() error { return p2p.Send(ctx, c, 1, ubcoll.Of([]byte{1})) })
		} else {
			err = testkit.InOrder(
				func() error { return testkit.ErrOf(p2p.Recv(ctx, c, 0, ubcoll.Of(make([]byte, 1)))) },
				func() error { return coll.AllReduce(ctx, c.On(s), b.Vec(), b.Vec(), ubcoll.Max) })
		}
		if err != nil {
			return err
		}
		return errors.Join(s.Sync(ctx), c.Err(), b.Free(), s.Close())
	})
}
