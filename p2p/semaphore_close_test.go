package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// permutations calls f with all orders of 0 to n-1.
func permutations(n int, f func(order []int) error) error {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	var from func(k int) error
	from = func(k int) error {
		if k == n {
			return f(order)
		}
		for i := k; i < n; i++ {
			order[k], order[i] = order[i], order[k]
			if err := from(k + 1); err != nil {
				return err
			}
			order[k], order[i] = order[i], order[k]
		}
		return nil
	}
	return from(0)
}

// TestSemaphoreCloseOrders closes two channels, their semaphore, the memory and its import in all orders on one rank,
// and in the usual order on the other.
func TestSemaphoreCloseOrders(t *testing.T) {
	const channelA, channelB, semaphore, registration, remote = 0, 1, 2, 3, 4
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		g, err := openRegion(ctx, c, ubcoll.Host, peer, 64)
		if err != nil {
			return err
		}
		return permutations(5, func(order []int) error {
			s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
			if err != nil {
				return err
			}
			var chs [2]*p2p.Channel
			for i := range chs {
				if chs[i], err = s.Channel(g.reg, g.remote); err != nil {
					return err
				}
			}
			if err := testkit.InOrder(
				func() error { return chs[0].PutWithSignal(ctx, 32, 0, 32) },
				func() error { return chs[1].Wait(ctx) },
				func() error { return coll.Barrier(ctx, c) }); err != nil {
				return err
			}
			if c.Rank() == 1 {
				order = []int{channelA, channelB, semaphore}
			}
			closed := map[int]bool{}
			want := func(what string, err error, is bool, of error) error {
				if !is {
					of = nil
				}
				if !errors.Is(err, of) {
					return fmt.Errorf("%v closed, %s: %v, not %v", closed, what, err, of)
				}
				return nil
			}
			for _, k := range order {
				closers := []func() error{chs[0].Close, chs[1].Close, s.Close, g.reg.Close, g.remote.Close}
				err := want(fmt.Sprint("close ", k), closers[k](), k < semaphore && closed[semaphore], ubcoll.ErrClosed)
				closed[k] = true
				errs := []error{err, want("signal", s.Signal(ctx), closed[semaphore], ubcoll.ErrClosed)}
				for i, ch := range chs {
					gone := closed[i] || closed[semaphore]
					errs = append(errs, want("channel's signal", ch.Signal(ctx), gone, ubcoll.ErrClosed))
					put := ch.Put(ctx, 32, 0, 1)
					switch {
					case gone || closed[remote] && !closed[registration]:
						errs = append(errs, want("put", put, true, ubcoll.ErrClosed))
					case c.Rank() == 0: // rank 1's memory stays until the end of the round
						errs = append(errs, want("put", put, closed[registration], ubcoll.ErrStale))
					}
				}
				if err := errors.Join(errs...); err != nil {
					return err
				}
			}
			if c.Rank() == 1 {
				if err := testkit.InOrder(func() error { return coll.Barrier(ctx, c) }, g.remote.Close, g.reg.Close, g.buf.Free); err != nil {
					return err
				}
			} else if err := testkit.InOrder(func() error { return coll.Barrier(ctx, c) }, g.buf.Free); err != nil {
				return err
			}
			if g, err = openRegion(ctx, c, ubcoll.Host, peer, 64); err != nil {
				return err
			}
			return coll.Barrier(ctx, c)
		})
	}))
}

// TestSemaphoreWaitEnds closes things during a wait on a semaphore or on a channel over it.
func TestSemaphoreWaitEnds(t *testing.T) {
	type side struct {
		c  *ubcoll.Comm
		s  *p2p.Semaphore
		ch *p2p.Channel
	}
	for _, k := range []struct {
		name    string
		by      int // rank 0 waits; this rank acts
		act     func(x *side) error
		want    error
		or      error // which is as good
		channel bool  // only for a wait on the channel
		lives   bool  // the semaphore is usable afterwards
		breaks  bool  // the communicator breaks
		device  bool  // so on devices, too
	}{
		{name: "the peer closes its semaphore", by: 1, act: func(x *side) error { return x.s.Close() }, want: ubcoll.ErrClosed, or: ubcoll.ErrClosed,
			device: true},
		{name: "this rank closes its semaphore", by: 0, act: func(x *side) error { return x.s.Close() }, want: ubcoll.ErrClosed, or: ubcoll.ErrClosed,
			device: true},
		{name: "this rank closes its channel", by: 0, act: func(x *side) error { return x.ch.Close() }, want: ubcoll.ErrClosed, or: ubcoll.ErrClosed,
			channel: true, lives: true},
		{name: "the peer closes its communicator", by: 1, act: func(x *side) error { return x.c.Close() }, want: ubcoll.ErrClosed,
			or: ubcoll.ErrPeerLost},
		{name: "the peer aborts", by: 1, act: func(x *side) error { x.c.Abort(errStop); return nil }, want: ubcoll.ErrAborted, or: ubcoll.ErrAborted,
			breaks: true, device: true},
		{name: "this rank aborts", by: 0, act: func(x *side) error { x.c.Abort(errStop); return nil }, want: ubcoll.ErrAborted,
			or: ubcoll.ErrClosed, breaks: true, device: true},
	} {
		for _, on := range []string{"semaphore", "channel"} {
			for _, place := range []string{"host", "device"} {
				if k.channel && on != "channel" || !k.device && place == "device" {
					continue
				}
				t.Run(k.name+"/"+on+"/"+place, func(t *testing.T) {
					do := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						d, err := c.Dup(ctx)
						if err != nil {
							return err
						}
						x := &side{c: d}
						if x.s, err = p2p.NewSemaphore(ctx, d, 1-c.Rank(), dev); err != nil {
							return err
						}
						g, err := openRegion(ctx, d, dev, 1-c.Rank(), 64)
						if err != nil {
							return err
						}
						if x.ch, err = x.s.Channel(g.reg, g.remote); err != nil {
							return err
						}
						var waits chan error
						if c.Rank() == 0 {
							waits = make(chan error, 1)
							go func() {
								if on == "channel" {
									waits <- x.ch.Wait(ctx)
								} else {
									waits <- x.s.Wait(ctx)
								}
							}()
							time.Sleep(20 * time.Millisecond)
						}
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
						if c.Rank() == k.by {
							if err := k.act(x); err != nil {
								return err
							}
						}
						if waits != nil {
							select {
							case err = <-waits:
							case <-time.After(testkit.Limit):
								return errors.New("the wait goes on")
							}
							if !errors.Is(err, k.want) && !errors.Is(err, k.or) {
								return fmt.Errorf("the wait ends with %w", err)
							}
							if broken := d.Err(); k.breaks && broken == nil {
								return fmt.Errorf("the communicator: %v", broken)
							}
						}
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
						if k.lives {
							if err := meet(ctx, x.s); err != nil {
								return err
							}
						}
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
						// What is left ends with the communicator.
						if err := d.Close(); err != nil && !errors.Is(err, ubcoll.ErrClosed) {
							return err
						}
						return errors.Join(testkit.Wants(x.s.Signal(ctx), ubcoll.ErrClosed), testkit.Wants(x.ch.Signal(ctx), ubcoll.ErrClosed),
							testkit.Wants(x.s.Close(), ubcoll.ErrClosed), testkit.Wants(x.ch.Close(), ubcoll.ErrClosed))
					}
					if place == "device" {
						gputest.Both(t, 2, ubcoll.Options{}, do)
						return
					}
					require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
						return do(ctx, c, ubcoll.Host)
					}))
				})
			}
		}
	}
}

// TestSemaphoreBusy closes a communicator during a wait on its semaphore, or on a channel over it: it is busy, until the
// wait is over.
func TestSemaphoreBusy(t *testing.T) {
	for _, channel := range []bool{false, true} {
		t.Run(fmt.Sprint("channel=", channel), func(t *testing.T) {
			require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				d, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				s, err := p2p.NewSemaphore(ctx, d, 1-c.Rank(), ubcoll.Host)
				if err != nil {
					return err
				}
				g, err := openRegion(ctx, d, ubcoll.Host, 1-c.Rank(), 64)
				if err != nil {
					return err
				}
				ch, err := s.Channel(g.reg, g.remote)
				if err != nil {
					return err
				}
				wait := s.Wait
				if channel {
					wait = ch.Wait
				}
				waits := make(chan error, 1)
				go func() { waits <- wait(ctx) }()
				time.Sleep(50 * time.Millisecond) // it waits now, for the peer signals after the barrier
				busy := d.Close()
				return errors.Join(testkit.Wants(busy, ubcoll.ErrBusy), coll.Barrier(ctx, c), s.Signal(ctx), <-waits,
					coll.Barrier(ctx, c), d.Close(), testkit.Wants(s.Signal(ctx), ubcoll.ErrClosed))
			}))
		})
	}
}

// TestSemaphoreChannelCloseOnDevice closes a channel whose wait is under way on a device, where that would end the
// semaphore: the close waits for it.
func TestSemaphoreChannelCloseOnDevice(t *testing.T) {
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		s, err := p2p.NewSemaphore(ctx, c, peer, dev)
		if err != nil {
			return err
		}
		g, err := openRegion(ctx, c, dev, peer, 64)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			err = testkit.InOrder(func() error { return coll.Barrier(ctx, c) }, func() error { return s.Signal(ctx) })
		} else {
			ch, e := s.Channel(g.reg, g.remote)
			if e != nil {
				return e
			}
			waits, closed := make(chan error, 1), make(chan error, 1)
			go func() { waits <- ch.Wait(ctx) }()
			time.Sleep(50 * time.Millisecond) // in most runs it waits now
			go func() { closed <- ch.Close() }()
			time.Sleep(50 * time.Millisecond)
			if len(closed)+len(waits) > 0 {
				return errors.New("the close did not wait")
			}
			err = errors.Join(coll.Barrier(ctx, c), <-waits, <-closed, testkit.Wants(ch.Signal(ctx), ubcoll.ErrClosed))
		}
		return errors.Join(err, meet(ctx, s), s.Close(), g.close())
	})
}

// TestSemaphoreCloseRaces closes a semaphore, and makes channels and signals in other goroutines at the same time.
func TestSemaphoreCloseRaces(t *testing.T) {
	rounds := 100
	if testkit.Daily() {
		rounds = 20
	}
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		g, err := openRegion(ctx, c, ubcoll.Host, peer, 64)
		if err != nil {
			return err
		}
		for round := range rounds {
			s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
			if err != nil {
				return err
			}
			running, ended := make(chan bool, 2), make(chan error, 2)
			go func() {
				var err error
				for err == nil {
					var ch *p2p.Channel
					if ch, err = s.Channel(g.reg, g.remote); err == nil {
						err = ch.Signal(ctx)
					}
					if err == nil && round%2 == 0 {
						err = ch.Close()
					}
					select {
					case running <- true:
					default:
					}
					if errors.Is(err, ubcoll.ErrLimit) {
						err = nil
					}
				}
				ended <- err
			}()
			go func() {
				var err error
				for err == nil {
					err = s.Wait(ctx)
				}
				ended <- err
			}()
			<-running
			if err := s.Close(); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			for range 2 {
				if err := testkit.Wants(<-ended, ubcoll.ErrClosed); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
			}
		}
		return errors.Join(coll.Barrier(ctx, c), g.close())
	}))
}

// TestTakenBackUnderSemaphore takes memory back while the peer copies through channels over a semaphore, and gives the
// memory to somebody else: no byte of the peer comes later.
func TestTakenBackUnderSemaphore(t *testing.T) {
	const n = 256 << 10
	rounds := 60
	if testkit.Daily() {
		rounds = 10
	}
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		peer := 1 - c.Rank()
		s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
		if err != nil {
			return err
		}
		for round := range rounds {
			g, err := openRegion(ctx, c, ubcoll.Host, peer, n)
			if err != nil {
				return err
			}
			for i := range g.buf.Slice() {
				g.buf.Slice()[i] = byte(1 + c.Rank())
			}
			var chs [3]*p2p.Channel
			for i := range chs {
				if chs[i], err = s.Channel(g.reg, g.remote); err != nil {
					return err
				}
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 { // copies until the memory is gone
				for i := 0; err == nil; i++ {
					if i == round%7 {
						err = s.Signal(ctx)
					}
					if err == nil {
						err = chs[i%3].Put(ctx, 0, 0, n)
					}
				}
				if err := testkit.Wants(err, ubcoll.ErrStale); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
				for _, ch := range chs {
					if err := errors.Join(testkit.Wants(ch.Put(ctx, 0, 0, 1), ubcoll.ErrStale), testkit.Wants(ch.Get(ctx, 0, 0, 1), ubcoll.ErrStale),
						ch.Close()); err != nil {
						return err
					}
				}
				if err := errors.Join(g.close(), coll.Barrier(ctx, c)); err != nil {
					return err
				}
				continue
			}
			if err := s.Wait(ctx); err != nil {
				return err
			}
			if err := g.reg.Close(); err != nil {
				return err
			}
			mine := bytes.Repeat([]byte{77}, n)
			copy(g.buf.Slice(), mine)
			time.Sleep(time.Millisecond)
			if i := differ(g.buf.Slice(), mine); i >= 0 {
				return fmt.Errorf("round %d: byte %d was written after Close", round, i)
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if i := differ(g.buf.Slice(), mine); i >= 0 {
				return fmt.Errorf("round %d: byte %d was written later", round, i)
			}
			errs := []error{g.remote.Close(), g.buf.Free()}
			for _, ch := range chs {
				errs = append(errs, ch.Close())
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
		return s.Close()
	}))
}
