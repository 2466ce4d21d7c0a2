package hosts

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Refused calls everything that does not cross hosts yet: channels and windows on devices. Each call fails on all
// ranks with ErrNotSupported, and says why.
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

// refusedAlike checks that this rank, like all, has the error for operations that do not work between hosts, and that
// the communicator still works.
func refusedAlike(ctx context.Context, c *ubcoll.Comm, err error) error {
	if !errors.Is(err, ubcoll.ErrNotSupported) || !strings.Contains(err.Error(), "is not supported between hosts yet") {
		return fmt.Errorf("%v, not that it is not supported between hosts", err)
	}
	return errors.Join(c.Err(), conform.SumOf(ctx, c, 1, int64(c.Size())))
}

// onDevice calls what devices cannot do between hosts.
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
	if err := oneSidedOnDevice(ctx, c, b); err != nil {
		return err
	}
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

// oneSidedOnDevice makes windows, channels and imports of device memory.
func oneSidedOnDevice(ctx context.Context, c *ubcoll.Comm, b *ubcoll.Buffer[int32]) error {
	_, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault)
	if err := refusedAlike(ctx, c, err); err != nil {
		return conform.Fail(c, "window of device memory: %w", err)
	}
	r, err := c.RegisterBuffer(b.Vec())
	if err != nil {
		return err
	}
	if p := conform.Partner(c); p >= 0 && conform.Far(c, p) {
		_, err := p2p.Connect(ctx, c, p, r)
		if err := conform.Refused(c, "channel of device memory", err, ubcoll.ErrNotSupported); err != nil {
			return err
		}
	}
	h, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	all := make([]byte, len(h)*c.Size())
	if err := coll.AllGather(ctx, c, ubcoll.Of(all), ubcoll.Of(h)); err != nil {
		return err
	}
	for p := range c.Size() {
		if !conform.Far(c, p) {
			continue
		}
		if err := conform.Refused(c, "import of device memory", testkit.ErrOf(c.Import(all[p*len(h):][:len(h)])),
			ubcoll.ErrNotSupported); err != nil {
			return err
		}
	}
	return errors.Join(c.Err(), coll.Barrier(ctx, c), r.Close())
}
