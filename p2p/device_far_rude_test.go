package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDeviceBetweenTakenBack closes a registration of device memory while the peer, on another host, puts into it and gets from
// it, blocking and on a stream: its calls end with ErrStale, and nothing writes to the memory afterwards.
func TestDeviceBetweenTakenBack(t *testing.T) {
	seed := testkit.Seed(t)
	const n = 200_000
	gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		for round := range testkit.Often(60) {
			r := rand.New(rand.NewPCG(seed, uint64(round)))
			e, err := openEnd(ctx, c, dev, 1-c.Rank(), 2*n)
			if err != nil {
				return err
			}
			size, queued := []int{8, 5000, n}[r.IntN(3)], r.IntN(2) == 0
			pause := time.Duration(r.IntN(3000)) * time.Microsecond
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 {
				err = usesUntilStale(ctx, e, s, n, size, queued)
			} else {
				time.Sleep(pause)
				want := bytes.Repeat([]byte{byte(round)}, 2*n)
				err = testkit.InOrder(e.reg.Close, func() error { return e.buf.CopyFrom(ctx, want) },
					func() error { return coll.Barrier(ctx, c) })
				got := make([]byte, 2*n)
				if err = errors.Join(err, e.buf.CopyTo(ctx, got)); err == nil && !bytes.Equal(got, want) {
					err = errors.New("something has written to memory that was taken back")
				}
			}
			if c.Rank() == 0 {
				err = errors.Join(err, coll.Barrier(ctx, c), e.reg.Close())
			}
			if err != nil {
				return fmt.Errorf("round %d, %d bytes, queued: %v: %w", round, size, queued, err)
			}
			if err := errors.Join(e.ch.Close(), e.buf.Free(), coll.Barrier(ctx, c)); err != nil {
				return err
			}
		}
		return s.Close()
	})
}

// usesUntilStale puts and gets until a call says that the memory was taken back.
func usesUntilStale(ctx context.Context, e *end, s *ubcoll.Stream, n, size int, queued bool) error {
	ch := e.ch
	if queued {
		ch = ch.On(s)
	}
	for {
		err := testkit.InOrder(
			func() error { return ch.Put(ctx, 0, 0, size) },
			func() error { return ch.Get(ctx, n, 0, size) },
			func() error { return ch.Put(ctx, n, n, size) })
		if queued {
			err = errors.Join(err, s.Sync(ctx))
		}
		if err != nil {
			return testkit.Wants(err, ubcoll.ErrStale)
		}
	}
}

// TestDeviceBetweenClosed closes a channel of device memory with puts and a wait queued: the puts arrive, and the wait ends.
func TestDeviceBetweenClosed(t *testing.T) {
	const n, puts = 100_000, 10
	gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), (puts+1)*n)
		if err != nil {
			return err
		}
		want := bytes.Repeat([]byte{7}, n)
		if c.Rank() == 1 {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			got := make([]byte, (puts+1)*n)
			testkit.Until(func() bool {
				err = e.buf.CopyTo(ctx, got)
				return err != nil || bytes.Equal(got[n:], bytes.Repeat(want, puts))
			})
			return errors.Join(err, e.close(), coll.Barrier(ctx, c))
		}
		a, err1 := ubcoll.NewStream(dev)
		b, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2, e.buf.CopyFrom(ctx, want), coll.Barrier(ctx, c), e.ch.On(b).Wait(ctx)); err != nil {
			return err
		}
		for i := range puts {
			if err := e.ch.On(a).Put(ctx, (i+1)*n, 0, n); err != nil {
				return err
			}
		}
		return errors.Join(e.ch.Close(), a.Sync(ctx), testkit.Wants(b.Sync(ctx), ubcoll.ErrClosed),
			testkit.Wants(e.ch.On(a).Put(ctx, 0, 0, 8), ubcoll.ErrClosed), a.Close(), b.Close(), e.reg.Close(), e.buf.Free(), coll.Barrier(ctx, c))
	})
}

// TestDeviceBetweenAborted aborts while both ranks put, wait and get on streams, and a window is in use.
func TestDeviceBetweenAborted(t *testing.T) {
	for round := range testkit.Often(20) {
		gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			const n = 300_000
			e, err := openEnd(ctx, c, dev, 1-c.Rank(), 2*n)
			if err != nil {
				return err
			}
			w, err := c.RegisterWindow(ctx, e.buf.Vec(), ubcoll.WindowDefault)
			if err != nil {
				return err
			}
			a, err1 := ubcoll.NewStream(dev)
			b, err2 := ubcoll.NewStream(dev)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if c.Rank() == 0 {
				time.AfterFunc(time.Duration(round%10)*time.Millisecond, func() { c.Abort(errors.New("enough")) })
			}
			peer := 1 - c.Rank()
			for err == nil {
				err = testkit.InOrder(
					func() error { return e.ch.On(a).PutWithSignal(ctx, n, 0, n) },
					func() error { return e.ch.On(b).Wait(ctx) },
					func() error { return w.On(a).Get(ctx, peer, e.buf.Vec().Slice(0, 1000), n) },
					func() error { return w.On(b).Signal(ctx, peer) },
					func() error { return w.On(b).Wait(ctx, peer) },
					func() error { return e.ch.Put(ctx, 0, n, 100) },
					func() error { return a.Sync(ctx) },
					func() error { return b.Sync(ctx) })
			}
			// Rank 0 closes what it has before it tells, so a call may also see that.
			for _, err := range []error{err, a.Sync(ctx), b.Sync(ctx), a.Close(), b.Close()} {
				if err != nil && !errors.Is(err, ubcoll.ErrAborted) && !errors.Is(err, ubcoll.ErrClosed) && !errors.Is(err, ubcoll.ErrStale) {
					return fmt.Errorf("rank %d: %w", c.Rank(), err)
				}
			}
			testkit.Until(func() bool { return c.Err() != nil })
			return testkit.Wants(c.Err(), ubcoll.ErrAborted)
		})
	}
}

// TestDeviceBetweenNoRoom puts and gets where the owner of the memory may lock no more memory: long puts go through the memory of
// calls then, and gets say why they fail.
func TestDeviceBetweenNoRoom(t *testing.T) {
	if race.Enabled {
		t.Skip("memory of the host is on the Go heap, and does not count")
	}
	const n, most = 300_000, 4 << 20
	t.Setenv(env.MaxPinned.Name, fmt.Sprint(most))
	gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), 2*n)
		if err != nil {
			return err
		}
		want := bytes.Repeat([]byte{9}, n)
		if c.Rank() == 1 {
			full, err := ubcoll.Alloc[byte](c, ubcoll.Host, most-2*n-100_000)
			if err != nil {
				return err
			}
			r, err := c.RegisterBuffer(full.Vec())
			if err != nil {
				return err
			}
			got := make([]byte, 2*n)
			return errors.Join(testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) },
				func() error { return e.buf.CopyTo(ctx, got) }, func() error {
					if !bytes.Equal(got[n:], want) {
						return errors.New("wrong data")
					}
					return nil
				}), coll.Barrier(ctx, c), r.Close(), full.Free(), e.close())
		}
		err = testkit.InOrder(func() error { return e.buf.CopyFrom(ctx, want) }, func() error { return e.ch.Wait(ctx) },
			func() error { return testkit.Wants(e.ch.Get(ctx, 0, 0, n), ubcoll.ErrLimit) },
			func() error { return e.ch.PutWithSignal(ctx, n, 0, n) })
		return errors.Join(err, coll.Barrier(ctx, c), e.close())
	})
}
