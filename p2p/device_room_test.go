package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/gpu/kernels"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

// TestBesideCollectives fills a small device with an all-reduce. The peer calls it only after messages, or steps of a
// channel, that this rank queues later.
func TestBesideCollectives(t *testing.T) {
	emulated.Only(t)
	type side struct {
		ctx  context.Context
		c    *ubcoll.Comm
		s    [3]*ubcoll.Stream
		e    *end
		n    int
		mine ubcoll.Vec
		sum  func(c *ubcoll.Comm) error
	}
	for _, k := range []struct {
		name         string
		first, other func(x *side) error // rank 0's calls, and those of rank 1, which has one stream
	}{
		{"messages", func(x *side) error {
			_, err := p2p.Recv(x.ctx, x.c.On(x.s[0]), 1, x.mine.Slice(x.n, 2*x.n)) // this message comes last
			if err != nil {
				return err
			}
			return testkit.InOrder(
				func() error { return x.sum(x.c.On(x.s[1])) },
				func() error { return p2p.Send(x.ctx, x.c.On(x.s[2]), 1, x.mine.Slice(0, x.n)) })
		}, func(x *side) error {
			return testkit.InOrder(
				func() error { return testkit.ErrOf(p2p.Recv(x.ctx, x.c.On(x.s[0]), 0, x.mine.Slice(x.n, 2*x.n))) },
				func() error { return x.sum(x.c.On(x.s[0])) },
				func() error { return p2p.Send(x.ctx, x.c.On(x.s[0]), 0, x.mine.Slice(0, x.n)) })
		}},
		{"a channel", func(x *side) error {
			if err := x.sum(x.c.On(x.s[1])); err != nil {
				return err
			}
			return x.e.ch.On(x.s[2]).Batch(x.ctx, func(b *p2p.Channel) error {
				return errors.Join(b.Put(x.ctx, x.n, 0, x.n), b.Signal(x.ctx), b.Wait(x.ctx))
			})
		}, func(x *side) error {
			return testkit.InOrder(
				func() error { return x.e.ch.On(x.s[0]).Wait(x.ctx) },
				func() error { return x.e.ch.On(x.s[0]).PutWithSignal(x.ctx, x.n, 0, x.n) },
				func() error { return x.sum(x.c.On(x.s[0])) })
		}},
	} {
		for _, policy := range testkit.Sample(2, []register.Policy{register.Auto, register.Off}) {
			for _, n := range testkit.Sample(3, []int{kernels.EagerBytes - 5, 100, 1<<20 + 5}) {
				t.Run(fmt.Sprintf("%s/%v/%d bytes", k.name, policy, n), func(t *testing.T) {
					t.Setenv("UBCOLL_EMULATE_SMS", "6")
					o := ubcoll.Options{Register: policy, Algorithm: "two-shot"}
					gputest.Run(t, 2, o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						a, err1 := gputest.Floats(ctx, c, dev, 100_000, 1)
						e, err2 := openEnd(ctx, c, dev, 1-c.Rank(), 2*n)
						x := &side{ctx: ctx, c: c, e: e, n: n}
						err := errors.Join(err1, err2)
						for i := range x.s {
							var err3 error
							x.s[i], err3 = ubcoll.NewStream(dev)
							err = errors.Join(err, err3)
						}
						if err != nil {
							return err
						}
						b, err := ubcoll.Alloc[byte](c, dev, 2*n) // only a message may register it
						if err != nil {
							return err
						}
						x.mine = b.Vec()
						x.sum = func(c *ubcoll.Comm) error {
							err := coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum)
							time.Sleep(20 * time.Millisecond) // it may fill the device meanwhile
							return err
						}
						if err := errors.Join(b.CopyFrom(ctx, pattern(n, uint64(c.Rank()))),
							e.buf.CopyFrom(ctx, pattern(n, uint64(c.Rank()))), coll.Barrier(ctx, c)); err != nil {
							return err
						}
						do := k.first
						if c.Rank() == 1 {
							do = k.other
						}
						if err := do(x); err != nil {
							return err
						}
						for _, s := range x.s {
							if err := s.Sync(ctx); err != nil {
								return err
							}
						}
						got := make([]byte, 2*n)
						from := b
						if k.name == "a channel" {
							from = e.buf
						}
						if err := errors.Join(gputest.All(ctx, c, a, 2), from.CopyTo(ctx, got)); err != nil {
							return err
						}
						if !bytes.Equal(got[n:], pattern(n, uint64(1-c.Rank()))) {
							return errors.New("wrong data")
						}
						for _, s := range x.s {
							err = errors.Join(err, s.Close())
						}
						return errors.Join(err, coll.Barrier(ctx, c), e.close(), b.Free(), a.Free())
					})
				})
			}
		}
	}
}

// TestMessagesManyStreams: the driver waits for kernels before a context gets more streams than it ever had. Each message
// needs one, and none waits for another message, however many streams the user made, before the communicator or after.
func TestMessagesManyStreams(t *testing.T) {
	emulated.Only(t)
	gputest.Enough(t, 2) // where ranks share a device, the user's own call would wait for the peer's kernels
	for _, before := range []bool{true, false} {
		for _, n := range testkit.Sample(3, []int{31, 62, 74, 28, 29, 30, 32, 33, 34, 54, 55, 56, 57, 58, 59, 60, 61, 63, 64, 65, 66, 72, 73, 75}) {
			t.Run(fmt.Sprintf("%d streams/before=%v", n, before), func(t *testing.T) {
				var all []*ubcoll.Stream
				open := func(dev ubcoll.Device) (err error) {
					for range n {
						s, err1 := ubcoll.NewStream(dev)
						if err = errors.Join(err, err1); err == nil {
							all = append(all, s)
						}
					}
					return err
				}
				if before {
					t.Setenv(env.CUDA.Name, "share")
					require.NoError(t, open(hw.CUDA(0)))
				}
				gputest.Run(t, 2, ubcoll.Options{Timeout: 20 * time.Second}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					b, err := ubcoll.Alloc[byte](c, dev, 200)
					if err == nil && !before && c.Rank() == 0 {
						err = open(dev)
					}
					if err != nil {
						return err
					}
					for range 8 { // they take the streams of more than one communicator
						if err := crossing(ctx, c, b.Vec()); err != nil {
							return err
						}
						if c, err = c.Dup(ctx); err != nil {
							return err
						}
						defer c.Close()
					}
					return nil
				})
				for _, s := range all {
					require.NoError(t, s.Close())
				}
			})
		}
	}
}

// crossing lets rank 0 begin to receive before it sends, and rank 1 sends only once it has received.
func crossing(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
	a, z := v.Slice(0, v.Len()/2), v.Slice(v.Len()/2, v.Len())
	if c.Rank() == 1 {
		return testkit.InOrder(
			func() error { return testkit.ErrOf(p2p.Recv(ctx, c, 0, z)) },
			func() error { return p2p.Send(ctx, c, 0, a) },
			func() error { return coll.Barrier(ctx, c) })
	}
	r, err := p2p.IRecv(ctx, c, 1, a)
	if err != nil {
		return err
	}
	return testkit.InOrder(
		func() error { return p2p.Send(ctx, c, 1, z) },
		func() error { return r.Wait(ctx) },
		func() error { return coll.Barrier(ctx, c) })
}

// TestNoAtomics emulates links without native atomic operations, so signals cannot be counted: channels and windows are
// refused, messages work.
func TestNoAtomics(t *testing.T) {
	emulated.Only(t)
	gputest.Enough(t, 2)
	t.Setenv("UBCOLL_EMULATE_ATOMICS", "0")
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[byte](c, dev, 2000)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return err
		}
		refused := func(c *ubcoll.Comm) error {
			_, channel := p2p.Connect(ctx, c, 1-c.Rank(), r)
			_, window := c.RegisterWindow(ctx, b.Vec(), 0)
			for _, err := range []error{channel, window} {
				if err == nil || !strings.Contains(err.Error(), "native atomic operations") {
					return fmt.Errorf("rank %d: %w", c.Rank(), err)
				}
				if err := testkit.Wants(err, fault.ErrNotSupported); err != nil {
					return err
				}
			}
			_, err = p2p.SendRecv(ctx, c, 1-c.Rank(), b.Vec().Slice(1000, 2000), 1-c.Rank(), b.Vec().Slice(0, 1000))
			if err != nil {
				return err
			}
			return errors.Join(coll.Barrier(ctx, c), c.Err())
		}
		child, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		return errors.Join(testkit.InOrder(
			func() error { return refused(c) },
			func() error { return refused(child) }), child.Close(), r.Close(), b.Free())
	})
}
