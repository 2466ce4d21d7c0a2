package endings

import (
	"context"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// KillDevice is Kill with operations on the ranks' devices, and with signals around a ring through a window there.
func KillDevice(ctx context.Context, c *ubcoll.Comm) error {
	dev, err := c.GPU()
	if err != nil {
		return err
	}
	b, err := ubcoll.Alloc[float32](c, dev, 300000)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), 0)
	if err != nil {
		return err
	}
	next, last := conform.Ring(c)
	return untilLost(c, func(v ubcoll.Vec) error {
		d := b.Vec().Slice(0, v.Len())
		if err := coll.AllReduce(ctx, c, d, d, ubcoll.Max); err != nil {
			return err
		}
		if err := w.Signal(ctx, next); err != nil {
			return err
		}
		return w.Wait(ctx, last)
	})
}

// KillDeviceP2P is Kill with messages between the ranks' devices around the ring.
func KillDeviceP2P(ctx context.Context, c *ubcoll.Comm) error {
	dev, err := c.GPU()
	if err != nil {
		return err
	}
	b, err := ubcoll.Alloc[float32](c, dev, 600000)
	if err != nil {
		return err
	}
	next, last := conform.Ring(c)
	return untilLost(c, func(v ubcoll.Vec) error {
		d := b.Vec()
		_, err := p2p.SendRecv(ctx, c, last, d.Slice(300000, 300000+v.Len()), next, d.Slice(0, v.Len()))
		return err
	})
}
