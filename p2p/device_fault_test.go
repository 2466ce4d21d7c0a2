package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestChannelOnDevicesReplayed captures a round on a stream of its own and replays it: the device counts signals and
// packets.
func TestChannelOnDevicesReplayed(t *testing.T) {
	const n = 30000
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) (err error) {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), 8*n)
		if err != nil {
			return err
		}
		far := c.LocalSize() < 2 // then there are no packets
		cu, s, end, err := gputest.Foreign(dev)
		if err != nil {
			return err
		}
		if err := cu.BeginCapture(); err != nil {
			return err
		}
		for i := 0; i < 3 && err == nil; i++ {
			err = e.ch.On(s).Batch(ctx, func(b *p2p.Channel) error {
				err := errors.Join(b.RelaxedSignal(ctx), b.Wait(ctx), b.Put(ctx, n, 0, n), b.Signal(ctx), b.Wait(ctx))
				if far {
					return err
				}
				return errors.Join(err, b.PutPackets(ctx, 2*n+2*n*(i%2), 0, n/8, p2p.Packet16), b.GetPackets(ctx, 6*n, 2*n+2*n*(i%2), n/8, p2p.Packet16))
			})
		}
		g, err2 := cu.EndCapture()
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		for round := range 7 {
			mine := bytes.Repeat([]byte{byte(10*round + c.Rank() + 1)}, n)
			theirs := bytes.Repeat([]byte{byte(10*round + 1 - c.Rank() + 1)}, n)
			if err := testkit.InOrder(
				func() error { return e.buf.CopyFrom(ctx, mine) },
				func() error { return e.ch.Signal(ctx) },
				func() error { return e.ch.Wait(ctx) }); err != nil {
				return err
			}
			if err := testkit.InOrder(
				func() error { return g.Launch(cu) },
				func() error { return s.Sync(ctx) }); err != nil {
				return err
			}
			got := make([]byte, 8*n)
			if err := e.buf.CopyTo(ctx, got); err != nil {
				return err
			}
			if !bytes.Equal(got[n:2*n], theirs) || !far && !bytes.Equal(got[6*n:6*n+n/8], theirs[:n/8]) {
				return fmt.Errorf("round %d: wrong data", round)
			}
			if err := testkit.InOrder(
				func() error { return e.ch.Signal(ctx) },
				func() error { return e.ch.Wait(ctx) }); err != nil {
				return err
			}
		}
		return errors.Join(g.Close(), end(), e.close())
	})
}

// TestChannelOnDevicesLarge uses the copy engine; steps that touch the same bytes run one after the other.
func TestChannelOnDevicesLarge(t *testing.T) {
	testkit.LongOrRace(t)
	const n = 33 << 20
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), 4*n)
		if err != nil {
			return err
		}
		mine, theirs := bytes.Repeat([]byte{byte(3 + c.Rank())}, n), bytes.Repeat([]byte{byte(4 - c.Rank())}, n)
		if err := testkit.InOrder(
			func() error { return e.buf.CopyFrom(ctx, mine) },
			func() error { return e.ch.Signal(ctx) },
			func() error { return e.ch.Wait(ctx) }); err != nil {
			return err
		}
		err = e.ch.Batch(ctx, func(b *p2p.Channel) error {
			return errors.Join(b.Put(ctx, n, 0, n), b.Signal(ctx), b.Wait(ctx), // the peer's bytes arrive at n,
				b.Get(ctx, 2*n, 0, n), b.Put(ctx, 3*n, n, 1<<20), b.Signal(ctx), b.Wait(ctx), b.Put(ctx, 3*n+1, 2*n, 99),
				b.Put(ctx, 3*n+2, 2*n, 100), b.Signal(ctx), b.Wait(ctx))
		})
		if err != nil {
			return err
		}
		got := make([]byte, 4*n)
		if err := e.buf.CopyTo(ctx, got); err != nil {
			return err
		}
		back := got[3*n : 3*n+1<<20]
		if !bytes.Equal(got[:n], mine) || !bytes.Equal(got[n:2*n], theirs) || !bytes.Equal(got[2*n:3*n], theirs) ||
			!bytes.Equal(back, mine[:len(back)]) {
			return errors.New("wrong data")
		}
		return e.close()
	})
}

func TestChannelOnDevicesRefused(t *testing.T) {
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), 1000)
		if err != nil {
			return err
		}
		host := &ubcoll.Stream{}
		if host, err = ubcoll.NewStream(ubcoll.Host); err != nil {
			return err
		}
		_, poll := e.ch.Poll()
		twice := e.ch.Batch(ctx, func(b *p2p.Channel) error { return b.Batch(ctx, func(*p2p.Channel) error { return nil }) })
		half := e.ch.Batch(ctx, func(b *p2p.Channel) error { return errors.Join(b.Signal(ctx), b.Put(ctx, 990, 0, 11)) })
		packets := ubcoll.ErrArgument
		if c.LocalSize() < 2 {
			packets = ubcoll.ErrNotSupported
		}
		if err := errors.Join(
			testkit.Wants(e.ch.Put(ctx, 990, 0, 11), ubcoll.ErrArgument), testkit.Wants(e.ch.Put(ctx, 0, -1, 1), ubcoll.ErrArgument),
			testkit.Wants(e.ch.Get(ctx, 0, 1001, 0), ubcoll.ErrArgument), testkit.Wants(e.ch.Get(ctx, 0, 0, -1), ubcoll.ErrArgument),
			testkit.Wants(e.ch.PutPackets(ctx, 8, 0, 16, p2p.Packet16), packets),
			testkit.Wants(e.ch.PutPackets(ctx, 0, 0, 501, p2p.Packet16), packets),
			testkit.Wants(e.ch.PutPackets(ctx, 0, 0, 16, 12), packets),
			testkit.Wants(e.ch.GetPackets(ctx, 31, 0, 16, p2p.Packet16), packets),
			testkit.Wants(e.ch.On(host).Signal(ctx), ubcoll.ErrArgument), testkit.Wants(poll, fault.ErrNotSupported),
			testkit.Wants(twice, ubcoll.ErrArgument), testkit.Wants(half, ubcoll.ErrArgument),
			host.Close()); err != nil {
			return err
		}
		// A bad batch has sent nothing: these signals are the first.
		if err := testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) }); err != nil {
			return err
		}
		// One side on the host.
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 1000)
		if err != nil {
			return err
		}
		h, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return err
		}
		mixed := h
		if c.Rank() == 1 {
			mixed = e.reg
		}
		_, err = p2p.Connect(ctx, c, 1-c.Rank(), mixed)
		if err := testkit.Wants(err, ubcoll.ErrArgument); err != nil {
			return err
		}
		// The peer's registration is closed: calls that reach its memory are refused, signals are not.
		if err := testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) }); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := testkit.InOrder(
				e.reg.Close,
				func() error { return testkit.Wants(e.ch.Put(ctx, 0, 0, 1), ubcoll.ErrStale) }); err != nil {
				return err
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if c.Rank() == 1 {
			if err := errors.Join(testkit.Wants(e.ch.Put(ctx, 0, 0, 1), ubcoll.ErrStale), e.reg.Close()); err != nil {
				return err
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		return errors.Join(e.ch.Close(), e.buf.Free(), h.Close(), b.Free())
	})
}

// TestChannelOnDevicesEnds ends waits in all possible ways; none breaks the communicator.
func TestChannelOnDevicesEnds(t *testing.T) {
	for _, k := range []struct {
		name string
		want error
		wait func(ctx context.Context, e *end) error
		peer func(ctx context.Context, c *ubcoll.Comm, e *end) error
	}{
		{"timeout", ubcoll.ErrTimeout, func(ctx context.Context, e *end) error { return e.ch.Wait(ctx) }, nil},
		{"timeout of packets", ubcoll.ErrTimeout, func(ctx context.Context, e *end) error {
			return e.ch.GetPackets(ctx, 0, 512, 200, p2p.Packet8)
		}, nil},
		{"context", context.DeadlineExceeded, func(ctx context.Context, e *end) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // long enough that the wait has begun
			defer cancel()
			return e.ch.Wait(ctx)
		}, nil},
		{"closed by the peer", ubcoll.ErrClosed, func(ctx context.Context, e *end) error {
			if err := e.ch.Wait(ctx); err != nil { // the peer has sent one
				return fmt.Errorf("the first wait: %v", err)
			}
			return e.ch.Wait(ctx)
		}, func(ctx context.Context, c *ubcoll.Comm, e *end) error {
			return errors.Join(e.ch.Signal(ctx), e.ch.Close())
		}},
		{"closed here", ubcoll.ErrClosed, func(ctx context.Context, e *end) error {
			time.AfterFunc(50*time.Millisecond, func() { e.ch.Close() })
			return e.ch.Wait(ctx)
		}, nil},
		{"on a stream", ubcoll.ErrTimeout, func(ctx context.Context, e *end) error {
			s, err := ubcoll.NewStream(e.buf.Device())
			if err != nil {
				return err
			}
			// Operations queued behind the wait do nothing.
			err = testkit.InOrder(
				func() error { return e.ch.On(s).Wait(ctx) },
				func() error { return e.ch.On(s).Put(ctx, 0, 0, 10) },
				func() error { return e.ch.On(s).Signal(ctx) })
			if err != nil {
				return err
			}
			err = s.Sync(ctx)
			if again := s.Sync(ctx); again != nil {
				return fmt.Errorf("told twice: %v", again)
			}
			return errors.Join(err, s.Close())
		}, nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			if k.name != "timeout" && k.peer == nil {
				testkit.LongOrRace(t)
			}
			gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				if c.LocalSize() < 2 && k.name == "timeout of packets" {
					return nil
				}
				e, err := openEnd(ctx, c, dev, 1-c.Rank(), 1024)
				if err != nil {
					return err
				}
				if err := e.buf.CopyFrom(ctx, bytes.Repeat([]byte{byte(c.Rank() + 1)}, 1024)); err != nil {
					return err
				}
				switch {
				case c.Rank() == 0:
					start := time.Now()
					if k.want == ubcoll.ErrTimeout {
						(*inside.Comm)(c).View().SetTimeout(500 * time.Millisecond)
					}
					if err := testkit.Wants(k.wait(ctx, e), k.want); err != nil {
						return err
					}
					t.Logf("it took %v", time.Since(start))
					if err := testkit.Wants(e.ch.Signal(ctx), k.want); err != nil {
						return fmt.Errorf("later: %w", err)
					}
					(*inside.Comm)(c).View().SetTimeout(testkit.Limit)
				case k.peer != nil:
					if err := k.peer(ctx, c, e); err != nil {
						return err
					}
				}
				// The communicator still works, on host and device.
				if err := testkit.InOrder(
					func() error { return coll.Barrier(ctx, c) },
					func() error { return coll.AllReduce(ctx, c, e.buf.Vec(), e.buf.Vec(), ubcoll.Max) }); err != nil {
					return err
				}
				got := make([]byte, 1024)
				if err := e.buf.CopyTo(ctx, got); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{2}, 1024)) {
					return fmt.Errorf("wrong data: %w", err)
				}
				e.ch.Close() // it may be closed already
				return errors.Join(e.reg.Close(), e.buf.Free())
			})
		})
	}
}

// TestChannelOnDevicesAborted makes a peer abort.
func TestChannelOnDevicesAborted(t *testing.T) {
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), 1024)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			time.Sleep(50 * time.Millisecond)
			c.Abort(errors.New("enough"))
			return nil
		}
		if err := testkit.Wants(e.ch.Wait(ctx), ubcoll.ErrAborted); err != nil {
			return err
		}
		return testkit.Wants(e.ch.Put(ctx, 0, 0, 1), ubcoll.ErrAborted)
	})
}
