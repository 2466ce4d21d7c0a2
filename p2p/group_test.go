package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// places runs f on the host, and on devices.
func places(t *testing.T, ranks int, f func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error) {
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), ranks, ubcoll.Options{Timeout: 20 * time.Second},
			func(ctx context.Context, c *ubcoll.Comm) error { return f(ctx, c, ubcoll.Host) }))
	})
	t.Run("device", func(t *testing.T) { gputest.Run(t, ranks, ubcoll.Options{Timeout: 20 * time.Second}, f) })
}

// recv receives exactly as many elements as v has room for.
func recv(ctx context.Context, c *ubcoll.Comm, peer int, v ubcoll.Vec) error {
	n, err := p2p.Recv(ctx, c, peer, v)
	if err == nil && n != v.Len() {
		err = fmt.Errorf("received %d elements, not %d", n, v.Len())
	}
	return err
}

// TestGroupMessages has sends before receives, beside collectives. Each send is too large to complete without its
// receive.
func TestGroupMessages(t *testing.T) {
	const n = 100 << 10
	for _, queued := range []bool{false, true} {
		t.Run(map[bool]string{false: "blocking", true: "stream"}[queued], func(t *testing.T) {
			places(t, 3, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				r := c.Rank()
				left, right := (r+2)%3, (r+1)%3
				src, err1 := gputest.Floats(ctx, c, dev, n, float32(r+1))
				a, err2 := gputest.Floats(ctx, c, dev, n, -1)
				b, err3 := gputest.Floats(ctx, c, dev, n, -1)
				sum, err4 := gputest.Floats(ctx, c, dev, n, -1)
				v, sync, end, err5 := gputest.View(ctx, c, dev, queued)
				if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
					return err
				}
				err := ubcoll.Group(ctx, v, func(g *ubcoll.Comm) error {
					return errors.Join(p2p.Send(ctx, g, right, src.Vec()), p2p.Send(ctx, g, left, src.Vec()),
						coll.AllReduce(ctx, g, sum.Vec(), src.Vec(), ubcoll.Sum),
						recv(ctx, g, left, a.Vec()), recv(ctx, g, right, b.Vec()), coll.Barrier(ctx, g))
				})
				if err == nil {
					err = sync()
				}
				if err != nil {
					return err
				}
				info := c.LastOp()
				var ops []string
				for _, m := range info.Members {
					ops = append(ops, m.Op)
				}
				if got := strings.Join(ops, " "); got != "all_reduce barrier send send recv recv" {
					err = fmt.Errorf("the group is told of as %q", got)
				}
				return errors.Join(err, gputest.All(ctx, c, a, float32(left+1)), gputest.All(ctx, c, b, float32(right+1)),
					gputest.All(ctx, c, sum, 6), end(), src.Free(), a.Free(), b.Free(), sum.Free())
			})
		})
	}
}

// TestGroupOfMessagesAlone makes a group on only two of three ranks.
func TestGroupOfMessagesAlone(t *testing.T) {
	places(t, 3, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		if c.Rank() == 2 {
			return coll.Barrier(ctx, c)
		}
		peer := 1 - c.Rank()
		one := func(n int) error {
			src, err1 := gputest.Floats(ctx, c, dev, n, float32(10*n+c.Rank()))
			dst, err2 := gputest.Floats(ctx, c, dev, n, -1)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				_, err := p2p.SendRecv(ctx, g, peer, dst.Vec(), peer, src.Vec())
				return err
			})
			if err != nil {
				return err
			}
			return errors.Join(gputest.All(ctx, c, dst, float32(10*n+peer)), src.Free(), dst.Free())
		}
		for range 3 {
			if err := one(5000); err != nil {
				return err
			}
		}
		if m := c.LastOp().Members; len(m) != 2 || m[0].Op != "send" || m[1].Op != "recv" {
			return fmt.Errorf("the group is told of as %v", m)
		}
		return coll.Barrier(ctx, c)
	})
}

// TestGroupExact has receives with more and with less room than is sent, for every way that messages travel.
func TestGroupExact(t *testing.T) {
	for _, n := range []int{3, 200, 5000, 100 << 10} {
		for _, room := range []int{n - 1, n + 1} {
			t.Run(fmt.Sprintf("%d for %d", room, n), func(t *testing.T) {
				require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
					b, err := ubcoll.Alloc[int32](c, ubcoll.Host, room)
					if err != nil {
						return err
					}
					for i := range b.Slice() {
						b.Slice()[i] = -1
					}
					src := make([]int32, n)
					if c.Rank() == 0 {
						err = ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return p2p.Send(ctx, g, 1, ubcoll.Of(src)) })
						if 4*n > 2<<10 { // smaller ones have been sent already
							err = testkit.Wants(err, ubcoll.ErrMismatch)
						}
					} else {
						err = testkit.Wants(ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return recv(ctx, g, 0, b.Vec()) }),
							ubcoll.ErrMismatch)
						if slices.Max(b.Slice()) != -1 {
							err = errors.Join(err, errors.New("memory for what does not fit has been written"))
						}
					}
					// The message is consumed, and both ranks go on.
					return errors.Join(err, goesOn(ctx, c), b.Free())
				}))
			})
		}
	}
}

// TestGroupViewEnds makes calls on a group's view while the next group of the communicator, which has that one's memory,
// is recorded: they are refused, and the next group is what it would be without them.
func TestGroupViewEnds(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		var ended *ubcoll.Comm
		x, y := []float32{1}, []float32{0}
		sum := func(g *ubcoll.Comm) error { return coll.AllReduce(ctx, g, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum) }
		exchange := func(g *ubcoll.Comm) error {
			_, err := p2p.SendRecv(ctx, g, 1-c.Rank(), ubcoll.Of(y), 1-c.Rank(), ubcoll.Of([]float32{3}))
			return err
		}
		for range 3 {
			err := ubcoll.Group(ctx, c, func(g *ubcoll.Comm) (err error) {
				if ended != nil {
					err = errors.Join(testkit.Wants(sum(ended), ubcoll.ErrClosed), testkit.Wants(exchange(ended), ubcoll.ErrClosed))
				}
				ended = g
				return errors.Join(err, sum(g), exchange(g))
			})
			if err != nil {
				return err
			}
		}
		if x[0] != 8 || y[0] != 3 || len(c.LastOp().Members) != 3 {
			return fmt.Errorf("%v and %v after 3 groups, of %d calls", x, y, len(c.LastOp().Members))
		}
		return nil
	}))
}

var errOwn = errors.New("own")

// TestGroupFails has groups of which a rank runs nothing, or whose collectives differ: none of their messages is sent,
// and the communicator stays usable.
func TestGroupFails(t *testing.T) {
	for _, k := range []struct {
		name string
		bad  func(ctx context.Context, g *ubcoll.Comm, x ubcoll.Vec) error // rank 1's calls, beside its receive
		want [2]error
	}{
		{"own error", func(context.Context, *ubcoll.Comm, ubcoll.Vec) error { return errOwn }, [2]error{nil, errOwn}},
		{"another count", func(ctx context.Context, g *ubcoll.Comm, x ubcoll.Vec) error {
			return coll.AllReduce(ctx, g, x.Slice(0, 2), x.Slice(0, 2), ubcoll.Sum)
		}, [2]error{ubcoll.ErrMismatch, ubcoll.ErrMismatch}},
		{"a request", func(ctx context.Context, g *ubcoll.Comm, x ubcoll.Vec) error {
			return testkit.ErrOf(p2p.ISend(ctx, g, 0, x))
		}, [2]error{ubcoll.ErrArgument, ubcoll.ErrArgument}},
		{"an exchange whose error nobody looks at", func(ctx context.Context, g *ubcoll.Comm, x ubcoll.Vec) error {
			var e p2p.Exchange
			e.Send(0, x)
			e.Do(ctx, g)
			return nil
		}, [2]error{ubcoll.ErrArgument, ubcoll.ErrArgument}},
		{"a message to nobody", func(ctx context.Context, g *ubcoll.Comm, x ubcoll.Vec) error {
			p2p.Send(ctx, g, 7, x)
			return nil
		}, [2]error{ubcoll.ErrArgument, ubcoll.ErrArgument}},
	} {
		t.Run(k.name, func(t *testing.T) {
			for _, queued := range []bool{false, true} {
				t.Run(map[bool]string{false: "blocking", true: "stream"}[queued], func(t *testing.T) {
					require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Timeout: testkit.Limit},
						func(ctx context.Context, c *ubcoll.Comm) error {
							v, sync, end, err := gputest.View(ctx, c, ubcoll.Host, queued)
							if err != nil {
								return err
							}
							x, y := ubcoll.Of(make([]int32, 5000)), ubcoll.Of(make([]int32, 5000))
							err = ubcoll.Group(ctx, v, func(g *ubcoll.Comm) error {
								if err := coll.AllReduce(ctx, g, x.Slice(0, 3), x.Slice(0, 3), ubcoll.Sum); err != nil {
									return err
								}
								if c.Rank() == 0 {
									return errors.Join(p2p.Send(ctx, g, 1, x),
										coll.AllReduce(ctx, g, x.Slice(0, 3), x.Slice(0, 3), ubcoll.Sum))
								}
								return errors.Join(recv(ctx, g, 0, y), k.bad(ctx, g, x))
							})
							err = errors.Join(err, sync())
							if want := k.want[c.Rank()]; want != nil {
								err = testkit.WantsOf(c.Rank(), "group", err, want)
							} else if err == nil {
								err = errors.New("rank 0 has heard of nothing")
							} else {
								err = nil
							}
							return errors.Join(err, goesOn(ctx, c), end())
						}))
				})
			}
		})
	}
	t.Run("before its collectives", func(t *testing.T) { // the peers cannot know of these
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			err := testkit.Wants(ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				if err := p2p.Send(ctx, g, 2, ubcoll.Of([]int32{1})); err != nil {
					return err
				}
				return coll.Barrier(ctx, g)
			}), ubcoll.ErrArgument)
			return errors.Join(err, goesOn(ctx, c))
		}))
	})
	t.Run("in another one", func(t *testing.T) { // the outer group fails with it, even if calls ignores the error
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			var inner error
			err := testkit.WantsOf(c.Rank(), "outer", ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				if err := coll.Barrier(ctx, g); err != nil {
					return err
				}
				inner = ubcoll.Group(ctx, g, func(h *ubcoll.Comm) error {
					return errors.Join(coll.Barrier(ctx, h), p2p.Send(ctx, h, 2, ubcoll.Of([]int32{1})))
				})
				return nil
			}), ubcoll.ErrArgument)
			return errors.Join(err, testkit.WantsOf(c.Rank(), "inner", inner, ubcoll.ErrArgument), goesOn(ctx, c))
		}))
	})
	t.Run("freed inside", func(t *testing.T) { // the peers hear of it
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			b, err := ubcoll.Alloc[int32](c, ubcoll.Host, 5000)
			if err != nil {
				return err
			}
			v, sync, end, err := gputest.View(ctx, c, ubcoll.Host, true)
			if err != nil {
				return err
			}
			err = ubcoll.Group(ctx, v, func(g *ubcoll.Comm) error {
				err := coll.Barrier(ctx, g)
				if c.Rank() == 0 {
					return errors.Join(err, p2p.Send(ctx, g, 1, b.Vec()), b.Free())
				}
				return errors.Join(err, recv(ctx, g, 0, b.Vec()))
			})
			err = testkit.WantsOf(c.Rank(), "group", errors.Join(err, sync()), ubcoll.ErrStale)
			return errors.Join(err, goesOn(ctx, c), end())
		}))
	})
	t.Run("of messages alone", func(t *testing.T) { // nobody else is told
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			x := ubcoll.Of([]int32{1})
			var err error
			if c.Rank() == 0 {
				err = testkit.Wants(ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
					return errors.Join(p2p.Send(ctx, g, 1, x), errOwn)
				}), errOwn)
				err = errors.Join(err, testkit.Wants(ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
					return p2p.Send(ctx, g, 2, x)
				}), ubcoll.ErrArgument))
			}
			return errors.Join(err, testkit.InOrder(
				func() error { return usable(ctx, c) },
				func() error { return coll.Barrier(ctx, c) }))
		}))
	})
}

// TestGroupFailsOnDeviceStream has a rank that runs nothing of a group, while its peer has queued the group's messages
// on its device.
func TestGroupFailsOnDeviceStream(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		x, err := gputest.Floats(ctx, c, dev, 100<<10, 1)
		if err != nil {
			return err
		}
		v, sync, end, err := gputest.View(ctx, c, dev, true)
		if err != nil {
			return err
		}
		err = ubcoll.Group(ctx, v, func(g *ubcoll.Comm) error {
			if err := coll.Barrier(ctx, g); err != nil {
				return err
			}
			if c.Rank() == 1 {
				return recv(ctx, g, 2, x.Vec())
			}
			return p2p.Send(ctx, g, 1, x.Vec())
		})
		if err = errors.Join(err, sync()); err == nil {
			return fmt.Errorf("rank %d has heard of nothing", c.Rank())
		}
		if !testkit.Until(func() bool { return c.Err() != nil }) {
			return errors.New("the communicator is not broken")
		}
		return errors.Join(testkit.Wants(c.Err(), ubcoll.ErrAborted), ignore(end()), c.Close(), ignore(x.Free()))
	})
}

// usable sends a large message each way, which must find no others before it.
func usable(ctx context.Context, c *ubcoll.Comm) error {
	const n = 10 << 10
	src, dst := slices.Repeat([]int32{int32(c.Rank()) + 5}, n), make([]int32, n)
	if _, err := p2p.SendRecv(ctx, c, 1-c.Rank(), ubcoll.Of(dst), 1-c.Rank(), ubcoll.Of(src)); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if dst[0] != int32(1-c.Rank())+5 || dst[n-1] != dst[0] {
		return fmt.Errorf("afterwards: %d has come", dst[0])
	}
	return nil
}

// goesOn returns an error unless the communicator still works: c.Err, a barrier, then usable.
func goesOn(ctx context.Context, c *ubcoll.Comm) error {
	return testkit.InOrder(
		c.Err,
		func() error { return coll.Barrier(ctx, c) },
		func() error { return usable(ctx, c) })
}

// ignore drops an error whose value does not matter on a broken communicator.
func ignore(error) error { return nil }

// TestMessagesOnHostStreams queues messages among other operations of a stream: they run in the stream's order, and
// match in the order of their calls.
func TestMessagesOnHostStreams(t *testing.T) {
	places(t, 2, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		const n = 5000
		a, err1 := gputest.Floats(ctx, c, dev, n, 1)
		b, err2 := gputest.Floats(ctx, c, dev, n, -1)
		d, err3 := gputest.Floats(ctx, c, dev, n, 7)
		s, err4 := ubcoll.NewStream(dev)
		other, err5 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return err
		}
		v, w := c.On(s), c.On(other)
		err := testkit.InOrder(
			func() error { return coll.AllReduce(ctx, v, a.Vec(), a.Vec(), ubcoll.Sum) }, // 2
			func() error { return testkit.ErrOf(p2p.SendRecv(ctx, v, peer, b.Vec(), peer, a.Vec())) },
			func() error { return coll.AllReduce(ctx, v, b.Vec(), b.Vec(), ubcoll.Sum) }) // 4
		switch {
		case err != nil:
			return err
		case c.Rank() == 0:
			// The message takes its place at the call: it is sent after the one that waits on s.
			err = testkit.InOrder(
				func() error { return p2p.Send(ctx, v, 1, b.Vec()) },
				func() error { return p2p.Send(ctx, w, 1, d.Vec()) })
		default:
			err = testkit.InOrder(
				func() error { return recv(ctx, w, 0, a.Vec()) },
				func() error { return recv(ctx, v, 0, d.Vec()) })
		}
		if err != nil {
			return err
		}
		if err := errors.Join(s.Sync(ctx), other.Sync(ctx)); err != nil {
			return err
		}
		if c.Rank() == 1 {
			err = errors.Join(gputest.All(ctx, c, a, 4), gputest.All(ctx, c, d, 7))
		}
		return errors.Join(err, gputest.All(ctx, c, b, 4), s.Close(), other.Close(), a.Free(), b.Free(), d.Free())
	})
}

// TestHostStreamWithdraws queues messages that never run: the peers' other messages are not delayed.
func TestHostStreamWithdraws(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		closed, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		x, peer := ubcoll.Of([]int32{1}), 1-c.Rank()
		if err := closed.Close(); err != nil {
			return err
		}
		err = errors.Join(testkit.Wants(p2p.Send(ctx, c.On(closed), peer, x), ubcoll.ErrClosed),
			testkit.Wants(ubcoll.Group(ctx, c.On(closed), func(g *ubcoll.Comm) error {
				return errors.Join(recv(ctx, g, peer, x), coll.Barrier(ctx, g))
			}), ubcoll.ErrClosed),
			testkit.Wants(p2p.Send(ctx, c.On(closed), c.Rank(), ubcoll.Of(make([]int32, 5000))), ubcoll.ErrArgument))
		return errors.Join(err, testkit.InOrder(
			func() error { return usable(ctx, c) },
			func() error { return coll.Barrier(ctx, c) }))
	}))
}

// TestCloseWithQueuedMessages closes a communicator, and frees memory, while a message waits on a stream; the message
// must still arrive.
func TestCloseWithQueuedMessages(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x := slices.Repeat([]int32{-1}, 5000)
		if c.Rank() == 1 {
			return testkit.InOrder(
				func() error { return coll.Barrier(ctx, c) },
				func() error { return recv(ctx, c, 0, ubcoll.Of(x)) },
				func() error { return wrong(x, 5) })
		}
		b, err1 := ubcoll.Alloc[int32](c, ubcoll.Host, 5000)
		s, err2 := ubcoll.NewStream(ubcoll.Host)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for i := range b.Slice() {
			b.Slice()[i] = 5
		}
		return testkit.InOrder(
			func() error { return p2p.Send(ctx, c.On(s), 1, b.Vec()) },
			func() error { return testkit.Wants(c.Close(), ubcoll.ErrBusy) },
			func() error { return testkit.Wants(s.Close(), ubcoll.ErrBusy) },
			b.Free,
			func() error { return coll.Barrier(ctx, c) },
			func() error { return s.Sync(ctx) },
			s.Close)
	}))
}

func wrong(got []int32, want int32) error {
	if slices.Min(got) != want || slices.Max(got) != want {
		return fmt.Errorf("%d to %d have come, not %d", slices.Min(got), slices.Max(got), want)
	}
	return nil
}

// TestAbortWithQueuedMessages aborts, and closes at once, while messages wait on a stream, one behind the other.
func TestAbortWithQueuedMessages(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err1 := ubcoll.Alloc[int32](c, ubcoll.Host, 5000)
		s, err2 := ubcoll.NewStream(ubcoll.Host)
		if err := errors.Join(err1, err2, coll.Barrier(ctx, c)); err != nil {
			return err
		}
		v := c.On(s)
		err := errors.Join(p2p.Send(ctx, v, 1-c.Rank(), b.Vec()), ubcoll.Group(ctx, v, func(g *ubcoll.Comm) error {
			return errors.Join(recv(ctx, g, 1-c.Rank(), b.Vec()), coll.Barrier(ctx, g))
		}))
		if c.Rank() == 0 {
			c.Abort(errOwn)
		}
		synced := s.Sync(ctx)
		return errors.Join(ignore(err), testkit.Wants(synced, ubcoll.ErrAborted), c.Close(), s.Close())
	}))
}

// TestGroupOfHostAndDevice has messages of host and device memory in one group; they start together.
func TestGroupOfHostAndDevice(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 100 << 10
		peer := 1 - c.Rank()
		src, err1 := gputest.Floats(ctx, c, dev, n, float32(c.Rank()))
		dst, err2 := gputest.Floats(ctx, c, dev, n, -1)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		x, y := slices.Repeat([]int32{int32(c.Rank())}, n), make([]int32, n)
		host := func(g *ubcoll.Comm) error {
			return errors.Join(p2p.Send(ctx, g, peer, ubcoll.Of(x)), recv(ctx, g, peer, ubcoll.Of(y)))
		}
		device := func(g *ubcoll.Comm) error {
			return errors.Join(p2p.Send(ctx, g, peer, src.Vec()), recv(ctx, g, peer, dst.Vec()))
		}
		calls := []func(*ubcoll.Comm) error{host, device}
		both := func(g *ubcoll.Comm) error { return errors.Join(calls[c.Rank()](g), calls[1-c.Rank()](g)) }
		hostExchange := func(g *ubcoll.Comm) error {
			_, err := p2p.SendRecv(ctx, g, peer, ubcoll.Of(y), peer, ubcoll.Of(x))
			return err
		}
		deviceExchange := func(g *ubcoll.Comm) error {
			_, err := p2p.SendRecv(ctx, g, peer, dst.Vec(), peer, src.Vec())
			return err
		}
		for _, k := range []struct {
			name    string
			members []string // of LastOp
			do      func() error
		}{
			{"with a collective", []string{"barrier", "send", "recv", "send", "recv"}, func() error {
				return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return errors.Join(both(g), coll.Barrier(ctx, g)) })
			}},
			{"alone", []string{"send", "recv", "send", "recv"}, func() error { return ubcoll.Group(ctx, c, both) }},
			{"nested", []string{"send", "recv", "send", "recv"}, func() error {
				return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return ubcoll.Group(ctx, g, both) })
			}},
			{"the peer's host memory first", nil, func() error {
				if c.Rank() == 0 {
					return ubcoll.Group(ctx, c, both)
				}
				return testkit.InOrder(func() error { return hostExchange(c) }, func() error { return deviceExchange(c) })
			}},
			{"the peer's device memory first", nil, func() error {
				if c.Rank() == 0 {
					return ubcoll.Group(ctx, c, both)
				}
				return testkit.InOrder(func() error { return deviceExchange(c) }, func() error { return hostExchange(c) })
			}},
		} {
			clear(y)
			err := testkit.InOrder(
				func() error { return dst.CopyFrom(ctx, make([]float32, n)) },
				func() error { return coll.Barrier(ctx, c) },
				k.do)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			var members []string
			for _, m := range c.LastOp().Members {
				members = append(members, m.Op)
			}
			if k.members != nil && !slices.Equal(members, k.members) {
				err = fmt.Errorf("the group is told of as %v", members)
			}
			if err = errors.Join(err, wrong(y, int32(peer)), gputest.All(ctx, c, dst, float32(peer))); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		_, err := graph.Capture(ctx, c, func(g *ubcoll.Comm) error { return ubcoll.Group(ctx, g, both) })
		return errors.Join(testkit.Wants(err, ubcoll.ErrArgument), src.Free(), dst.Free())
	})
}

// TestGroupNested has a group in a group, which becomes part of it, and a group in a capture.
func TestGroupNested(t *testing.T) {
	places(t, 2, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		src, err1 := gputest.Floats(ctx, c, dev, 100<<10, float32(c.Rank()))
		dst, err2 := gputest.Floats(ctx, c, dev, 100<<10, -1)
		sum, err3 := gputest.Floats(ctx, c, dev, 100<<10, 1)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		calls := func(g *ubcoll.Comm) error {
			return ubcoll.Group(ctx, g, func(h *ubcoll.Comm) error {
				return errors.Join(p2p.Send(ctx, h, peer, src.Vec()), recv(ctx, h, peer, dst.Vec()),
					coll.AllReduce(ctx, h, sum.Vec(), sum.Vec(), ubcoll.Sum))
			})
		}
		if err := testkit.InOrder(
			func() error { return ubcoll.Group(ctx, c, calls) },
			func() error { return gputest.All(ctx, c, dst, float32(peer)) },
			func() error { return gputest.All(ctx, c, sum, 2) }); err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c, calls)
		if dev.IsHost() {
			err = testkit.Wants(err, ubcoll.ErrArgument)
		} else if err == nil {
			err = testkit.InOrder(
				func() error { return dst.CopyFrom(ctx, make([]float32, dst.Len())) },
				func() error { return g.Launch(ctx) },
				g.Close,
				func() error { return gputest.All(ctx, c, dst, float32(peer)) },
				func() error { return gputest.All(ctx, c, sum, 4) })
		}
		return errors.Join(err, src.Free(), dst.Free(), sum.Free())
	})
}

// TestMessagesOfGoroutinesOnOneStream has several goroutines that queue messages for the same peer on one stream: the
// order on the stream is also the order of the messages.
func TestMessagesOfGoroutinesOnOneStream(t *testing.T) {
	const goroutines, calls = 4, 500
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Timeout: 20 * time.Second},
		func(ctx context.Context, c *ubcoll.Comm) error {
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			v, x := c.On(s), make([]int32, 8)
			errs := make([]error, goroutines)
			var w sync.WaitGroup
			for i := range goroutines {
				w.Go(func() {
					for k := 0; k < calls && errs[i] == nil; k++ {
						if c.Rank() == 0 {
							errs[i] = p2p.Send(ctx, v, 1, ubcoll.Of(x))
						} else {
							errs[i] = recv(ctx, v, 0, ubcoll.Of(make([]int32, 8)))
						}
					}
				})
			}
			w.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
			return errors.Join(s.Sync(ctx), s.Close())
		}))
}

// TestBehindQueuedMessage waits behind a message that is queued for long on its stream. It must not fail because of the
// deadline, or because a peer has sent all and closed.
func TestBehindQueuedMessage(t *testing.T) {
	closed := make(chan struct{})
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{Timeout: testkit.Limit},
		func(ctx context.Context, c *ubcoll.Comm) error {
			one := ubcoll.Of(make([]int32, 1))
			switch c.Rank() {
			case 1:
				err := errors.Join(testkit.InOrder(
					func() error { return p2p.Send(ctx, c, 0, one) },
					func() error { return p2p.Send(ctx, c, 0, one) }), c.Close())
				close(closed)
				return err
			case 2:
				<-closed
				for range 5 { // each within the deadline, and together beyond it
					time.Sleep(250 * time.Millisecond)
					if err := p2p.Send(ctx, c, 0, one); err != nil {
						return err
					}
				}
				return nil
			}
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			<-closed
			(*inside.Comm)(c).View().SetTimeout(time.Second)
			for range 5 {
				if err := recv(ctx, c.On(s), 2, ubcoll.Of(make([]int32, 1))); err != nil {
					return err
				}
			}
			return testkit.InOrder(
				func() error { return recv(ctx, c.On(s), 1, one) },
				func() error { return recv(ctx, c, 1, ubcoll.Of(make([]int32, 1))) },
				func() error { return s.Sync(ctx) },
				s.Close)
		}))
}

// TestBehindQueuedRequest is the same for a request that is tested again and again.
func TestBehindQueuedRequest(t *testing.T) {
	closed := make(chan struct{})
	require.NoError(t, ubcoll.Local(t.Context(), 3, ubcoll.Options{Timeout: testkit.Limit},
		func(ctx context.Context, c *ubcoll.Comm) error {
			one := ubcoll.Of(make([]int32, 1))
			switch c.Rank() {
			case 1:
				err := errors.Join(testkit.InOrder(
					func() error { return p2p.Send(ctx, c, 0, one) },
					func() error { return p2p.Send(ctx, c, 0, one) }), c.Close())
				close(closed)
				return err
			case 2:
				<-closed
				time.Sleep(100 * time.Millisecond)
				return p2p.Send(ctx, c, 0, one)
			}
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			<-closed
			if err := testkit.InOrder(
				func() error { return recv(ctx, c.On(s), 2, ubcoll.Of(make([]int32, 1))) },
				func() error { return recv(ctx, c.On(s), 1, one) }); err != nil {
				return err
			}
			r, err := p2p.IRecv(ctx, c, 1, ubcoll.Of(make([]int32, 1)))
			if err != nil {
				return err
			}
			for done := false; !done; {
				if done, err = r.Test(); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
			return errors.Join(s.Sync(ctx), s.Close())
		}))
}

// TestBehindQueuedEnds waits behind a message whose turn never comes, with a context that ends.
func TestBehindQueuedEnds(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{Timeout: testkit.Limit},
		func(ctx context.Context, c *ubcoll.Comm) error {
			if c.Rank() == 1 {
				return testkit.Wants(recv(ctx, c, 0, ubcoll.Of(make([]int32, 1))), ubcoll.ErrAborted)
			}
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			v := c.On(s)
			if err := testkit.InOrder( // no peer calls these
				func() error { return coll.Barrier(ctx, v) },
				func() error { return recv(ctx, v, 1, ubcoll.Of(make([]int32, 1))) }); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			err = testkit.Wants(recv(short, c, 1, ubcoll.Of(make([]int32, 1))), context.DeadlineExceeded)
			return errors.Join(err, ignore(s.Sync(ctx)), ignore(c.Close()), s.Close())
		}))
}

// TestExchangeChangedUnderWay adds to an exchange while it runs: the messages that were started complete, and the
// request's count stays.
func TestExchangeChangedUnderWay(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		var x p2p.Exchange
		x.Send(0, ubcoll.Of([]int32{1, 2}))
		x.Recv(0, ubcoll.Of(make([]int32, 2)))
		r, err := x.Start(ctx, c)
		if err != nil {
			return err
		}
		x.Send(0, ubcoll.Of([]int32{1, 2, 3}))
		x.Recv(0, ubcoll.Of(make([]int32, 3)))
		if err := testkit.InOrder(
			func() error { return r.Wait(ctx) },
			func() error { return x.Do(ctx, c) }); err != nil {
			return err
		}
		if r.Received() != 2 || !slices.Equal(x.Received(), []int{2, 3}) {
			return fmt.Errorf("%d, then %v", r.Received(), x.Received())
		}
		return nil
	}))
}

// TestRequestsOnDevice starts the maximum number of requests, and one more.
func TestRequestsOnDevice(t *testing.T) {
	gputest.Run(t, 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[byte](c, dev, 1)
		if err != nil {
			return err
		}
		var rs []*p2p.Request
		for range 127 {
			r, err := p2p.IRecv(ctx, c, 0, b.Vec())
			if err != nil {
				return err
			}
			rs = append(rs, r)
		}
		if err := testkit.Wants(testkit.ErrOf(p2p.IRecv(ctx, c, 0, b.Vec())), ubcoll.ErrLimit); err != nil {
			return err
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		for range rs {
			if err := p2p.Send(ctx, c.On(s), 0, b.Vec()); err != nil {
				return err
			}
		}
		for _, r := range rs {
			if err := r.Wait(ctx); err != nil {
				return err
			}
		}
		return errors.Join(s.Sync(ctx), s.Close(), b.Free())
	})
}

// TestEndedContext makes calls with a context that has ended with a cause: errors have both the context's error and the
// cause.
func TestEndedContext(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errOwn)
		for _, v := range []*ubcoll.Comm{c, c.On(s)} {
			for _, err := range []error{p2p.Send(ended, v, 0, ubcoll.Of([]int8{1})), recv(ended, v, 0, ubcoll.Of([]int8{1})),
				ubcoll.Group(ended, v, func(g *ubcoll.Comm) error { return p2p.Send(ctx, g, 0, ubcoll.Of([]int8{1})) }),
				testkit.ErrOf(p2p.IRecv(ended, v, 0, ubcoll.Of([]int8{1})))} {
				if err := errors.Join(testkit.Wants(err, context.Canceled), testkit.Wants(err, errOwn)); err != nil {
					return err
				}
			}
		}
		return errors.Join(c.Err(), s.Close())
	}))
}
