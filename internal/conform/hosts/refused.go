package hosts

import (
	"context"
	"errors"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Refused calls what does not cross hosts: operations whose ranks are not all on devices. Each call fails on all ranks.
func Refused(ctx context.Context, c *ubcoll.Comm) error {
	if !Spans(c) {
		return nil
	}
	dev, err := c.GPU()
	if err != nil {
		return nil
	}
	return onDevice(ctx, c, dev)
}

// onDevice calls on devices what others call on the host.
func onDevice(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
	b, err := ubcoll.Alloc[int32](c, dev, 4)
	if err != nil {
		return err
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	x := []int32{int32(c.Rank())}
	// If a rank calls on its device what the others call on the host, all refuse.
	if c.Rank() == c.Size()-1 {
		err = coll.AllReduce(ctx, c, b.Vec().Slice(0, 1), b.Vec().Slice(0, 1), ubcoll.Sum)
	} else {
		err = coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
	}
	if !errors.Is(err, ubcoll.ErrMismatch) || c.Err() != nil {
		return conform.Fail(c, "device memory on one rank gave %v, and %v", err, c.Err())
	}
	// On one host all of it works.
	d, err := c.Split(ctx, host(c), 0)
	if err != nil {
		return err
	}
	if err := b.CopyFrom(ctx, []int32{1, 2, 3, 4}); err != nil {
		return err
	}
	if err := testkit.InOrder(
		func() error { return coll.AllReduce(ctx, d.On(s), b.Vec(), b.Vec(), ubcoll.Sum) },
		func() error { return s.Sync(ctx) }); err != nil {
		return conform.Fail(c, "all_reduce on the devices of a host: %w", err)
	}
	got := make([]int32, 4)
	if err := b.CopyTo(ctx, got); err != nil || got[3] != int32(4*d.Size()) {
		return conform.Fail(c, "all_reduce on the devices of a host: %v, %v", got, err)
	}
	return errors.Join(s.Close(), d.Close(), b.Free())
}
