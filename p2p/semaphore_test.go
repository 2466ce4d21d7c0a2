package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// region is memory of this rank, and the peer's of the same number.
type region struct {
	buf    *ubcoll.Buffer[byte]
	reg    *ubcoll.Registration
	remote *ubcoll.Remote
}

// openRegion makes n bytes on dev, and exchanges handles with the peer.
func openRegion(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, peer, n int) (*region, error) {
	g := &region{}
	var err error
	if g.buf, err = ubcoll.Alloc[byte](c, dev, n); err != nil {
		return nil, err
	}
	if g.reg, err = g.buf.Register(c); err != nil {
		return nil, err
	}
	mine, err := g.reg.MarshalBinary()
	if err != nil {
		return nil, err
	}
	theirs := make([]byte, len(mine))
	if _, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(theirs), peer, ubcoll.Of(mine)); err != nil {
		return nil, err
	}
	g.remote, err = c.Import(theirs)
	return g, err
}

func (g *region) close() error { return errors.Join(g.remote.Close(), g.reg.Close(), g.buf.Free()) }

// onPlaces runs f on two ranks, on the host and on devices.
func onPlaces(t *testing.T, f func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error) {
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			return f(ctx, c, ubcoll.Host)
		}))
	})
	t.Run("device", func(t *testing.T) { gputest.Both(t, 2, ubcoll.Options{}, f) })
}

// meet lets both ranks get here.
func meet(ctx context.Context, s interface {
	Signal(ctx context.Context) error
	Wait(ctx context.Context) error
}) error {
	return testkit.InOrder(func() error { return s.Signal(ctx) }, func() error { return s.Wait(ctx) })
}

// TestSemaphore makes channels over one semaphore between several memories. Signals that are sent on any of them are
// taken on any other, and come after the data.
func TestSemaphore(t *testing.T) {
	onPlaces(t, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n, many = 4096, 3
		peer := 1 - c.Rank()
		s, err := p2p.NewSemaphore(ctx, c, peer, dev)
		if err != nil {
			return err
		}
		if s.Peer() != peer {
			return fmt.Errorf("the peer is %d", s.Peer())
		}
		var regions []*region
		var chs []*p2p.Channel
		for k := range many {
			g, err := openRegion(ctx, c, dev, peer, n)
			if err != nil {
				return err
			}
			all := make([]byte, n)
			for i := range n / 2 {
				all[i] = byte(i*(k+2) + c.Rank())
			}
			if err := g.buf.CopyFrom(ctx, all); err != nil {
				return err
			}
			ch, err := s.Channel(g.reg, g.remote)
			if err != nil {
				return err
			}
			if ch.Peer() != peer {
				return fmt.Errorf("the channel's peer is %d", ch.Peer())
			}
			regions, chs = append(regions, g), append(chs, ch)
		}
		if err := meet(ctx, s); err != nil {
			return err
		}
		for k, ch := range chs {
			if err := ch.PutWithSignal(ctx, n/2, 0, n/2); err != nil {
				return err
			}
			if err := chs[(k+1)%many].Signal(ctx); err != nil {
				return err
			}
		}
		for _, wait := range []func(context.Context) error{s.Wait, chs[1].Wait, chs[1].Wait, s.Wait, chs[0].Wait, chs[2].Wait} {
			if err := wait(ctx); err != nil {
				return err
			}
		}
		for k, g := range regions {
			got := make([]byte, n)
			if err := g.buf.CopyTo(ctx, got); err != nil {
				return err
			}
			for i := range n / 2 {
				if want := byte(i*(k+2) + peer); got[n/2+i] != want {
					return fmt.Errorf("memory %d: byte %d is %d, not %d", k, i, got[n/2+i], want)
				}
			}
		}
		if err := testkit.InOrder(
			func() error { return meet(ctx, chs[2]) },
			func() error { return coll.Barrier(ctx, c) },
			func() error {
				if ok, err := s.Poll(); ok || (err != nil) != (dev != ubcoll.Host) {
					return fmt.Errorf("a signal is left: %v, %v", ok, err)
				}
				return nil
			},
			func() error { return coll.Barrier(ctx, c) }); err != nil {
			return err
		}
		// A channel's Close leaves the rest open, a semaphore's does not.
		if err := testkit.InOrder(chs[0].Close, func() error { return meet(ctx, chs[1]) }, s.Close); err != nil {
			return err
		}
		for _, err := range []error{chs[0].Close(), chs[1].Close(), chs[1].Signal(ctx), chs[2].Put(ctx, 0, 0, 1), s.Close(),
			s.Signal(ctx), s.Wait(ctx), testkit.ErrOf(s.Channel(regions[0].reg, regions[0].remote))} {
			if err := testkit.Wants(err, ubcoll.ErrClosed); err != nil {
				return err
			}
		}
		for _, g := range regions {
			if err := g.close(); err != nil {
				return err
			}
		}
		return coll.Barrier(ctx, c)
	})
}

// TestSemaphoreOnStreams queues a semaphore's and its channel's calls on streams: they run in the order of the calls on
// each.
func TestSemaphoreOnStreams(t *testing.T) {
	onPlaces(t, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		s, err := p2p.NewSemaphore(ctx, c, peer, dev)
		if err != nil {
			return err
		}
		g, err := openRegion(ctx, c, dev, peer, 2000)
		if err != nil {
			return err
		}
		ch, err := s.Channel(g.reg, g.remote)
		if err != nil {
			return err
		}
		st, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		if err := testkit.InOrder(
			func() error { return g.buf.CopyFrom(ctx, make([]byte, 2000)) },
			func() error { return meet(ctx, s) }); err != nil {
			return err
		}
		for i := range 20 {
			if err := testkit.InOrder(
				func() error { return s.On(st).Signal(ctx) },
				func() error { return ch.On(st).Wait(ctx) },
				func() error { return ch.On(st).Put(ctx, 1000+i, i, 1) },
				func() error { return s.On(st).RelaxedSignal(ctx) },
				func() error { return s.On(st).On(nil).On(st).Wait(ctx) }); err != nil {
				return err
			}
		}
		return testkit.InOrder(
			func() error { return st.Sync(ctx) },
			func() error { return meet(ctx, s) },
			s.Close, st.Close, g.close)
	})
}

// TestSemaphoreMismatch makes a semaphore where the peer makes a channel: both calls fail, and the next ones match.
func TestSemaphoreMismatch(t *testing.T) {
	type maker func(ctx context.Context, c *ubcoll.Comm, g *region) (interface{ Close() error }, error)
	connect := func(ctx context.Context, c *ubcoll.Comm, g *region) (interface{ Close() error }, error) {
		return p2p.Connect(ctx, c, 1-c.Rank(), g.reg)
	}
	channel := func(ctx context.Context, c *ubcoll.Comm, g *region) (interface{ Close() error }, error) {
		return p2p.NewChannel(ctx, c, g.reg, g.remote)
	}
	semaphore := func(ctx context.Context, c *ubcoll.Comm, g *region) (interface{ Close() error }, error) {
		return p2p.NewSemaphore(ctx, c, 1-c.Rank(), ubcoll.Host)
	}
	onDevice := func(ctx context.Context, c *ubcoll.Comm, _ *region) (interface{ Close() error }, error) {
		dev, err := c.GPU()
		if err != nil {
			return nil, err
		}
		return p2p.NewSemaphore(ctx, c, 1-c.Rank(), dev)
	}
	for _, k := range []struct {
		name   string
		device bool
		makers [2]maker
		texts  [2]string // in the ranks' errors
	}{
		{"Connect and NewSemaphore", false, [2]maker{connect, semaphore},
			[2]string{"rank 1 makes a semaphore on the host, and this rank a channel", "rank 0 makes a channel, and this rank a semaphore"}},
		{"NewSemaphore and NewChannel", false, [2]maker{semaphore, channel},
			[2]string{"rank 1 makes a channel, and this rank a semaphore", "rank 0 makes a semaphore on the host, and this rank a channel"}},
		{"host and device", true, [2]maker{semaphore, onDevice},
			[2]string{"rank 1 makes a semaphore on a device, and this rank a semaphore on the host",
				"rank 0 makes a semaphore on the host, and this rank a semaphore on a device"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			do := func(ctx context.Context, c *ubcoll.Comm) error {
				g, err := openRegion(ctx, c, ubcoll.Host, 1-c.Rank(), 64)
				if err != nil {
					return err
				}
				for range 3 {
					_, err := k.makers[c.Rank()](ctx, c, g)
					if err := testkit.Wants(err, ubcoll.ErrArgument); err != nil {
						return err
					}
					if text := k.texts[c.Rank()]; !contains(err, text) {
						return fmt.Errorf("%w does not say %q", err, text)
					}
				}
				for _, m := range []maker{semaphore, connect, channel} {
					x, err := m(ctx, c, g)
					if err != nil {
						return err
					}
					if err := x.Close(); err != nil {
						return err
					}
				}
				return errors.Join(coll.Barrier(ctx, c), g.close())
			}
			if k.device {
				gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error { return do(ctx, c) })
				return
			}
			require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, do))
		})
	}
}

// TestSemaphoreLimit makes all channels that there is room for. Those over a semaphore need no help of the peer to make
// room again.
func TestSemaphoreLimit(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		g, err := openRegion(ctx, c, ubcoll.Host, peer, 64)
		if err != nil {
			return err
		}
		s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
		if err != nil {
			return err
		}
		var chs []*p2p.Channel
		for {
			ch, err := s.Channel(g.reg, g.remote)
			if err != nil {
				if err := testkit.Wants(err, ubcoll.ErrLimit); err != nil {
					return err
				}
				break
			}
			chs = append(chs, ch)
		}
		if len(chs) != 511 {
			return fmt.Errorf("%d channels beside the semaphore", len(chs))
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		_, semaphore := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
		_, channel := p2p.Connect(ctx, c, peer, g.reg)
		if err := errors.Join(testkit.Wants(semaphore, ubcoll.ErrLimit), testkit.Wants(channel, ubcoll.ErrLimit)); err != nil {
			return err
		}
		last := chs[len(chs)-1]
		for range 1000 { // more than there are slots
			if err := testkit.InOrder(last.Close, func() (err error) {
				last, err = s.Channel(g.reg, g.remote)
				return err
			}); err != nil {
				return err
			}
		}
		if err := testkit.InOrder(
			func() error { return last.Put(ctx, 32, 0, 32) },
			func() error { return meet(ctx, last) },
			chs[7].Close,
			chs[8].Close); err != nil {
			return err
		}
		ch, err := p2p.Connect(ctx, c, peer, g.reg)
		if err != nil {
			return err
		}
		return errors.Join(meet(ctx, ch), ch.Close(), s.Close(), g.close())
	}))
}
