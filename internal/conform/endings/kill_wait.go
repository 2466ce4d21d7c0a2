package endings

import (
	"context"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// KillWait signals around a ring of ranks without end, over channels and a window in turn, until a peer is lost. Then
// it reports as Kill does.
func KillWait(ctx context.Context, c *ubcoll.Comm) error {
	r, err := conform.NewRegion(c, 1<<20)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, r.Buf.Vec(), 0)
	if err != nil {
		return err
	}
	next, last := conform.Ring(c)
	to := make([]*p2p.Channel, c.Size())
	for p := range c.Size() {
		if p == c.Rank() {
			continue
		}
		if to[p], err = p2p.Connect(ctx, c, p, r.Reg); err != nil {
			return err
		}
	}
	dir, err := ready(c)
	if err != nil {
		return err
	}
	return callUntilLost(c, dir, func(k int) error {
		if k%2 == 0 {
			if err := to[next].PutWithSignal(ctx, 1<<19, 0, 1<<18); err != nil {
				return err
			}
			return to[last].Wait(ctx)
		}
		if err := w.Signal(ctx, next); err != nil {
			return err
		}
		return w.Wait(ctx, last)
	})
}
