package ubcoll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// about returns an error unless err wraps want and names rank, as the reporting rank or as Peer.
func about(err, want error, rank int) error {
	var e *ubcoll.Error
	if err := testkit.Wants(err, want); err != nil {
		return err
	}
	if !errors.As(err, &e) || e.Peer != rank && e.Rank != rank {
		return fmt.Errorf("rank %d is not named by %w", rank, err)
	}
	return nil
}

// TestWindowOnDevicesRefused makes windows of parts that do not fit together: all ranks return an error that names the
// rank at fault.
func TestWindowOnDevicesRefused(t *testing.T) {
	gputest.Run(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		on, err1 := ubcoll.Alloc[byte](c, dev, 4096)
		host, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, 4096)
		freed, err3 := ubcoll.Alloc[byte](c, dev, 4096)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		if err := freed.Free(); err != nil {
			return err
		}
		odd := 2
		pick := func(v ubcoll.Vec) ubcoll.Vec {
			if c.Rank() == odd {
				return v
			}
			return on.Vec()
		}
		for _, k := range []struct {
			name  string
			v     ubcoll.Vec
			flags ubcoll.WindowFlags
			want  error
		}{
			{"size", pick(on.Vec().Slice(0, 100)), 0, ubcoll.ErrMismatch},
			{"host", pick(host.Vec()), 0, ubcoll.ErrMismatch},
			{"offset", pick(on.Vec().Slice(8, 108)).Slice(0, 100), ubcoll.WindowCollSymmetric, ubcoll.ErrMismatch},
			{"Go memory", pick(ubcoll.Of(make([]byte, 4096))), 0, ubcoll.ErrArgument},
			{"freed", pick(freed.Vec()), 0, ubcoll.ErrStale},
			{"empty", pick(on.Vec().Slice(5, 5)), 0, ubcoll.ErrArgument},
		} {
			w, err := c.RegisterWindow(ctx, k.v, k.flags)
			if w != nil {
				return fmt.Errorf("%s: a window", k.name)
			}
			if err := errors.Join(about(err, k.want, odd), c.Err()); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		// None of the failed calls has left anything behind.
		return errors.Join(on.Free(), host.Free())
	})
}

// TestWindowOnDevicesMisused passes bad arguments, which must change nothing.
func TestWindowOnDevicesMisused(t *testing.T) {
	gputest.Enough(t, 2)
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		p, err := openPart(ctx, c, dev, 1000, 0)
		if err != nil {
			return err
		}
		hp, err := openPart(ctx, c, ubcoll.Host, 1000, 0)
		if err != nil {
			return err
		}
		host, err1 := ubcoll.NewStream(ubcoll.Host)
		device, err2 := ubcoll.NewStream(dev)
		elsewhere, err3 := ubcoll.NewStream(ubcoll.CUDA(1 - dev.Index()))
		freed, err4 := ubcoll.Alloc[byte](c, dev, 10)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		if err := freed.Free(); err != nil {
			return err
		}
		const huge = 1<<63 - 1
		ten := p.buf.Vec().Slice(0, 10)
		errs := []error{
			testkit.Wants(p.w.On(host).Signal(ctx, 0), ubcoll.ErrArgument),
			testkit.Wants(p.w.On(host).Flush(ctx), ubcoll.ErrArgument),
			testkit.Wants(p.w.On(elsewhere).Put(ctx, 0, 500, ten), ubcoll.ErrArgument),
			testkit.Wants(hp.w.On(device).Signal(ctx, 0), ubcoll.ErrArgument),
			testkit.Wants(hp.w.Put(ctx, 0, 0, ten), ubcoll.ErrArgument), testkit.Wants(hp.w.Get(ctx, 1, ten, 0), ubcoll.ErrArgument),
			testkit.Wants(p.w.Put(ctx, 1, 0, freed.Vec()), ubcoll.ErrStale),
			testkit.Wants(p.w.Get(ctx, 1, ten.Slice(5, 1), 0), ubcoll.ErrArgument),
			testkit.Wants(p.w.Put(ctx, c.Rank(), 9, ten), ubcoll.ErrArgument), // source and destination overlap
			testkit.Wants(p.w.Get(ctx, c.Rank(), p.buf.Vec().Slice(1, 11), 0), ubcoll.ErrArgument),
			p.w.Put(ctx, c.Rank(), 0, ten), p.w.Put(ctx, c.Rank(), 10, ten),
			testkit.Wants(testkit.ErrOf(p.w.Peer(2)), ubcoll.ErrArgument),
		}
		for r := range 2 {
			errs = append(errs, testkit.Wants(p.w.Put(ctx, r, 0, ubcoll.Of(make([]byte, 10))), ubcoll.ErrArgument),
				testkit.Wants(p.w.Get(ctx, r, hp.buf.Vec().Slice(0, 10), 0), ubcoll.ErrArgument))
			for _, off := range []int{-1, 991, 1000, 1001, huge} {
				errs = append(errs, testkit.Wants(p.w.Put(ctx, r, off, ten), ubcoll.ErrArgument),
					testkit.Wants(p.w.Get(ctx, r, ten, off), ubcoll.ErrArgument))
			}
		}
		for _, r := range []int{-1, 2, huge} {
			errs = append(errs, testkit.Wants(p.w.Put(ctx, r, 0, ten), ubcoll.ErrArgument),
				testkit.Wants(p.w.Signal(ctx, r), ubcoll.ErrArgument), testkit.Wants(p.w.Wait(ctx, r), ubcoll.ErrArgument))
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		errs = append(errs, testkit.Wants(p.w.Put(over, 1, 0, ten), context.Canceled),
			// None of these calls has sent a signal or ended the window.
			testkit.InOrder(
				func() error { return p.w.Signal(ctx, 1-c.Rank()) },
				func() error { return p.w.Wait(ctx, 1-c.Rank()) }), c.Err(), coll.Barrier(ctx, c), hp.close(), p.close(),
			testkit.Wants(p.w.Put(ctx, 1, 0, ten), ubcoll.ErrClosed), testkit.Wants(p.w.On(device).Flush(ctx), ubcoll.ErrClosed),
			testkit.Wants(testkit.ErrOf(p.w.Peer(0)), ubcoll.ErrClosed), testkit.Wants(p.w.Close(), ubcoll.ErrClosed),
			host.Close(), device.Close(), elsewhere.Close())
		return errors.Join(errs...)
	})
}

// TestWindowOnDevicesClosedThere closes one rank's part while the others go on with theirs: calls towards it are
// refused, signals sent before still arrive, and peers unmap its memory, so that Close and Free succeed.
func TestWindowOnDevicesClosedThere(t *testing.T) {
	gputest.Run(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		p, err := openPart(ctx, c, dev, 1<<20, 0)
		if err != nil {
			return err
		}
		half := p.buf.Vec().Slice(0, 1<<19)
		if c.Rank() == 0 {
			err = errors.Join(p.w.Signal(ctx, 1), p.w.Signal(ctx, 2))
		} else {
			err = p.w.Put(ctx, 0, 1<<19, half)
		}
		if err := errors.Join(err, coll.Barrier(ctx, c)); err != nil {
			return err
		}
		if c.Rank() == 0 {
			start := time.Now()
			if err := p.close(); err != nil {
				return fmt.Errorf("close and free: %w", err)
			}
			t.Logf("close and free took %v", time.Since(start))
			return coll.Barrier(ctx, c)
		}
		if err := coll.Barrier(ctx, c); err != nil { // from here on, rank 0 has closed
			return err
		}
		peer := 3 - c.Rank()
		return errors.Join(testkit.InOrder(
			func() error { return testkit.Wants(p.w.Put(ctx, 0, 0, half), ubcoll.ErrStale) },
			func() error { return testkit.Wants(p.w.Get(ctx, 0, half, 0), ubcoll.ErrStale) },
			func() error { return testkit.Wants(testkit.ErrOf(p.w.Peer(0)), ubcoll.ErrStale) },
			func() error { return p.w.Wait(ctx, 0) },
			func() error { return testkit.Wants(p.w.Wait(ctx, 0), ubcoll.ErrClosed) },
			func() error { return testkit.Wants(p.w.Put(ctx, 0, 0, half), ubcoll.ErrStale) },
			// The other ranks' parts still work.
			func() error { return p.w.Put(ctx, peer, 1<<19, half) },
			func() error { return p.w.Signal(ctx, peer) },
			func() error { return p.w.Wait(ctx, peer) },
			c.Err), p.close())
	})
}

// TestWindowOnDevicesEnds ends waits in all possible ways: only the window towards that rank ends.
func TestWindowOnDevicesEnds(t *testing.T) {
	testkit.LongOrRace(t)
	for _, k := range []struct {
		name string
		want error
		wait func(ctx context.Context, p *part) error
	}{
		{"timeout", ubcoll.ErrTimeout, func(ctx context.Context, p *part) error { return p.w.Wait(ctx, 1) }},
		{"context", context.DeadlineExceeded, func(ctx context.Context, p *part) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // long enough that the wait has begun
			defer cancel()
			return p.w.Wait(ctx, 1)
		}},
		{"on a stream", ubcoll.ErrTimeout, func(ctx context.Context, p *part) error {
			s, err := ubcoll.NewStream(p.buf.Device())
			if err != nil {
				return err
			}
			// Operations queued behind the wait do nothing.
			w := p.w.On(s)
			if err := testkit.InOrder(
				func() error { return w.Wait(ctx, 1) },
				func() error { return w.Put(ctx, 1, 0, p.buf.Vec().Slice(10, 20)) },
				func() error { return w.Signal(ctx, 1) }); err != nil {
				return err
			}
			err = s.Sync(ctx)
			return errors.Join(err, s.Sync(ctx), s.Close())
		}},
		{"closed here", ubcoll.ErrClosed, func(ctx context.Context, p *part) error {
			time.AfterFunc(50*time.Millisecond, func() { p.w.Close() })
			return p.w.Wait(ctx, 1)
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			over := make(chan struct{}) // rank 0's part is done; the others wait for it without the communicator
			gputest.Run(t, 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				p, err := openPart(ctx, c, dev, 1000, 0)
				if err != nil {
					return err
				}
				if err := p.buf.CopyFrom(ctx, bytes.Repeat([]byte{byte(c.Rank() + 1)}, 1000)); err != nil {
					return err
				}
				here := k.name == "closed here"
				if c.Rank() == 0 {
					defer close(over)
					if k.want == ubcoll.ErrTimeout {
						(*inside.Comm)(c).View().SetTimeout(500 * time.Millisecond)
					}
					err := testkit.Wants(k.wait(ctx, p), k.want)
					(*inside.Comm)(c).View().SetTimeout(testkit.Limit)
					if err != nil || here {
						return errors.Join(err, c.Err(), p.buf.Free())
					}
					err = errors.Join(testkit.Wants(p.w.Signal(ctx, 1), k.want), testkit.Wants(p.w.Flush(ctx), k.want),
						testkit.InOrder(
							func() error { return p.w.Put(ctx, 2, 500, p.buf.Vec().Slice(0, 10)) },
							func() error { return p.w.Signal(ctx, 2) }), c.Err())
					return errors.Join(err, p.close())
				}
				<-over
				if c.Rank() == 2 && !here {
					err = testkit.InOrder(
						func() error { return p.w.Wait(ctx, 0) },
						func() error { return holds(ctx, p.buf, 500, bytes.Repeat([]byte{1}, 10)) })
				}
				return errors.Join(err, holds(ctx, p.buf, 0, bytes.Repeat([]byte{byte(c.Rank() + 1)}, 500)), c.Err(), p.close())
			})
		})
	}
}

// TestWindowOnDevicesAborted makes a peer abort: waits end and the communicator breaks.
func TestWindowOnDevicesAborted(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		p, err := openPart(ctx, c, dev, 1000, 0)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			c.Abort(errors.New("enough"))
			return testkit.Wants(p.w.Signal(ctx, 0), ubcoll.ErrClosed)
		}
		return errors.Join(testkit.Wants(p.w.Wait(ctx, 1), ubcoll.ErrAborted),
			testkit.Wants(p.w.Put(ctx, 1, 0, p.buf.Vec().Slice(0, 1)), ubcoll.ErrAborted))
	})
}
