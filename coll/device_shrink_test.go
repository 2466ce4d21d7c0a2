package coll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDeviceShrink lets ranks go on without one that has left while they waited for it on devices, in a call or in what is
// queued on a stream. The new communicator has devices, too, and the ranks' memory there.
func TestDeviceShrink(t *testing.T) {
	for _, queued := range []bool{true, false} {
		if !queued && !testkit.Full() { // a rank that has closed is missed on devices after 3 seconds
			continue
		}
		t.Run(fmt.Sprintf("queued %v", queued), func(t *testing.T) {
			gputest.Run(t, 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				return shrinkOnDevices(ctx, c, dev, 2, queued)
			})
		})
	}
}

// TestAcrossDeviceShrink is the same with several hosts, which may be fewer afterwards.
func TestAcrossDeviceShrink(t *testing.T) {
	for _, k := range []struct {
		hosts string
		gone  int
	}{{"aab", 2}, {"aab", 0}, {"abc", 1}} {
		t.Run(fmt.Sprint(k.hosts, " without ", k.gone), func(t *testing.T) {
			requireAll(t, devicesOnHosts(t, k.hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				d, err := c.Dup(ctx) // the helper closes c, which is whole
				if err != nil {
					return err
				}
				return shrinkOnDevices(ctx, d, dev, k.gone, true)
			}))
		})
	}
}

func shrinkOnDevices(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, gone int, queued bool) error {
	b, err := gputest.Floats(ctx, c, dev, 5000, 1)
	if err != nil {
		return err
	}
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	if c.Rank() == gone {
		time.Sleep(10 * time.Millisecond) // so that the others wait for it, mostly
		return c.Close()
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	if queued {
		for range 3 {
			err = errors.Join(err, coll.AllReduce(ctx, c.On(s), b.Vec(), b.Vec(), ubcoll.Sum))
		}
		err = errors.Join(err, s.Sync(ctx))
	} else {
		err = coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum)
	}
	if !errors.Is(err, ubcoll.ErrPeerLost) && !errors.Is(err, ubcoll.ErrAborted) {
		return fmt.Errorf("rank %d: %w", c.Rank(), err)
	}
	left, err := c.Shrink(ctx)
	if err != nil {
		return err
	}
	n := c.Size() - 1
	if err := c.Close(); err != nil {
		return err
	}
	if d, err := left.GPU(); err != nil || d != dev || left.Size() != n {
		return fmt.Errorf("%v, %w, %d ranks", d, err, left.Size())
	}
	next, err := gputest.Floats(ctx, left, dev, 5000, 1)
	if err != nil {
		return err
	}
	return testkit.InOrder(
		func() error { return coll.AllReduce(ctx, left.On(s), b.Vec(), next.Vec(), ubcoll.Sum) }, // b is of c
		func() error { return s.Sync(ctx) }, // says nothing of c any more
		func() error { return gputest.All(ctx, left, b, float32(n)) },
		s.Close, left.Close)
}
