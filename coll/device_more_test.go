package coll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDeviceAdopt uses another library's memory, which peers reach like this library's own.
func TestDeviceAdopt(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{Algorithm: "two-shot"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 5000
		x, err := cuda.Primary(dev)
		if err != nil {
			return err
		}
		defer x.Close()
		theirs, err := x.Alloc(4 * n)
		if err != nil {
			return err
		}
		host := make([]float32, 4)
		_, wrong := ubcoll.Adopt(c, dev, unsafe.Pointer(&host[0]), 16)
		b, err := ubcoll.Adopt(c, dev, *(*unsafe.Pointer)(unsafe.Pointer(&theirs)), 4*n)
		if err != nil {
			return err
		}
		one := slices.Repeat([]float32{1}, n)
		if err := b.CopyFrom(ctx, unsafe.Slice((*byte)(unsafe.Pointer(&one[0])), 4*n)); err != nil {
			return err
		}
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return err
		}
		v := b.Vec().As(ubcoll.Of(one).Type())
		if err := untilDirect(ctx, c, v); err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum); err != nil {
			return err
		}
		if o := c.LastOp(); !o.Src.Direct || !o.Dst.Direct {
			return fmt.Errorf("not direct any more: %v", o.String())
		}
		if err := b.CopyTo(ctx, unsafe.Slice((*byte)(unsafe.Pointer(&one[0])), 4*n)); err != nil {
			return err
		}
		if one[0] != 2 || one[n-1] != 2 {
			return fmt.Errorf("%v and %v, not 2", one[0], one[n-1])
		}
		return errors.Join(testkit.WantsOf(c.Rank(), "host memory", wrong, ubcoll.ErrArgument), r.Close(), b.Free(),
			x.Free(theirs))
	})
}

// TestDeviceGroup makes groups, blocking and on a stream; one of them fails on one rank.
func TestDeviceGroup(t *testing.T) {
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprintf("queued=%v", queued), func(t *testing.T) {
			gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				a, err := gputest.Floats(ctx, c, dev, 100, 1)
				if err != nil {
					return err
				}
				view, sync, end, err := gputest.View(ctx, c, dev, queued)
				if err != nil {
					return err
				}
				defer end()
				err = ubcoll.Group(ctx, view, func(g *ubcoll.Comm) error {
					return errors.Join(coll.AllReduce(ctx, g, a.Vec(), a.Vec(), ubcoll.Sum), coll.Barrier(ctx, g),
						coll.AllReduce(ctx, g, a.Vec(), a.Vec(), ubcoll.Sum))
				})
				if err != nil {
					return err
				}
				if err := testkit.InOrder(sync, func() error { return gputest.All(ctx, c, a, 4) }); err != nil {
					return err
				}
				err = ubcoll.Group(ctx, view, func(g *ubcoll.Comm) error {
					if err := coll.AllReduce(ctx, g, a.Vec(), a.Vec(), ubcoll.Sum); err != nil || c.Rank() == 0 {
						return err
					}
					return ubcoll.ErrLimit
				})
				err = testkit.WantsOf(c.Rank(), "a group that fails", errors.Join(err, sync()), ubcoll.ErrLimit)
				if err != nil {
					return err
				}
				// One rank gets one of several calls wrong: no rank is left behind.
				err = ubcoll.Group(ctx, view, func(g *ubcoll.Comm) error {
					return errors.Join(coll.AllReduce(ctx, g, a.Vec(), a.Vec().Slice(0, 100-50*c.Rank()), ubcoll.Sum),
						coll.Barrier(ctx, g), coll.AllReduce(ctx, g, a.Vec(), a.Vec(), ubcoll.Sum))
				})
				return errors.Join(testkit.WantsOf(c.Rank(), "a call of a group", errors.Join(err, sync()), ubcoll.ErrArgument),
					c.Err(), testkit.InOrder(
						func() error { return coll.AllReduce(ctx, view, a.Vec(), a.Vec(), ubcoll.Max) },
						sync))
			})
		})
	}
}

// TestDeviceClose closes things that are in use.
func TestDeviceClose(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err1 := gputest.Floats(ctx, c, dev, 100, 1)
		s, err2 := ubcoll.NewStream(dev)
		twin, err3 := c.Dup(ctx)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		reduce := func() error { return coll.AllReduce(ctx, twin.On(s), a.Vec(), a.Vec(), ubcoll.Sum) }
		if c.Rank() == 1 {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if err := testkit.InOrder(reduce, func() error { return s.Sync(ctx) }); err != nil {
				return err
			}
		} else {
			if err := reduce(); err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := errors.Join(testkit.WantsOf(c.Rank(), "close of the communicator", twin.Close(), ubcoll.ErrBusy),
				testkit.WantsOf(c.Rank(), "close of the stream", s.Close(), ubcoll.ErrBusy),
				testkit.WantsOf(c.Rank(), "a wait that is cut short", s.Sync(short), context.DeadlineExceeded),
				twin.Err(), testkit.InOrder(
					func() error { return coll.Barrier(ctx, c) },
					func() error { return s.Sync(ctx) })); err != nil {
				return err
			}
		}
		return testkit.InOrder(
			func() error { return gputest.All(ctx, c, a, 2) },
			twin.Close,
			func() error { return s.Sync(ctx) },
			s.Close,
			a.Free,
			func() error {
				return testkit.WantsOf(c.Rank(), "a call on a closed communicator", reduce(), ubcoll.ErrClosed)
			})
	})
}

// TestDevicePeerClosed waits for a peer that closes its communicator.
func TestDevicePeerClosed(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 100, 1)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			time.Sleep(50 * time.Millisecond)
			return nil
		}
		begin := time.Now()
		err = coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum)
		t.Logf("after %v", time.Since(begin))
		return testkit.WantsOf(c.Rank(), "the call", err, ubcoll.ErrPeerLost)
	})
}

// TestDeviceAndHost makes one rank call on host memory while the others call on their devices. All learn it, although
// neither operation sees the other; they return at once, whatever the deadline.
func TestDeviceAndHost(t *testing.T) {
	for _, n := range []int{2, 3} {
		for i, how := range []string{"blocking", "stream", "graph"} {
			for odd := range n {
				if testkit.Daily() && (n != 2 || i == 0 || odd != i%2) { // calls on streams, once each
					continue
				}
				t.Run(fmt.Sprintf("%d ranks, %s, rank %d on the host", n, how, odd), func(t *testing.T) {
					gputest.Run(t, n, ubcoll.Options{Timeout: 10 * time.Minute}, func(ctx context.Context, c *ubcoll.Comm,
						dev ubcoll.Device) error {
						return deviceAndHost(ctx, c, dev, how, odd)
					})
				})
			}
		}
	}
}

func deviceAndHost(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, how string, odd int) error {
	a, err := gputest.Floats(ctx, c, dev, 100, 1)
	if err != nil {
		return err
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	on := func(v *ubcoll.Comm) error { return coll.AllReduce(ctx, v, a.Vec(), a.Vec(), ubcoll.Sum) }
	g, err := graph.Capture(ctx, c.On(s), on)
	if err != nil {
		return err
	}
	// Host and device operations that run at the same time do no harm, in whichever order ranks reach them.
	x := []float32{1}
	for range 20 {
		if err := testkit.InOrder(
			func() error { return on(c.On(s)) },
			func() error { return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Max) },
			func() error { return on(c) },
			func() error { return g.Launch(ctx) },
			func() error { return coll.Barrier(ctx, c) }); err != nil {
			return err
		}
	}
	switch {
	case c.Rank() == odd:
		err = coll.AllReduce(ctx, c, ubcoll.Of(make([]float32, 100)), ubcoll.Of(make([]float32, 100)), ubcoll.Sum)
	case how == "blocking":
		err = on(c)
	case how == "stream":
		err = errors.Join(on(c.On(s)), s.Sync(ctx))
	default:
		err = errors.Join(g.Launch(ctx), s.Sync(ctx))
	}
	var e *ubcoll.Error
	switch {
	case !errors.Is(err, ubcoll.ErrMismatch) || !errors.As(err, &e):
		return fmt.Errorf("rank %d: %w", c.Rank(), err)
	case !strings.Contains(err.Error(), fmt.Sprintf("rank %d has called on host memory what rank ", odd)):
		return fmt.Errorf("rank %d is not named: %v", odd, err)
	case !errors.Is(c.Err(), ubcoll.ErrMismatch):
		return fmt.Errorf("the communicator: %w", c.Err())
	}
	return nil
}
