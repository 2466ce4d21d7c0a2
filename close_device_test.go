package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestCloseWaitsNoLonger closes everything while queued operations wait for a peer that does not come. No Close waits
// longer than it promises, the second Close is ErrClosed, and the resources are released once the peer has come.
func TestCloseWaitsNoLonger(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		start := c.Stats().Memory
		n, err1 := newNouns(ctx, c, dev)
		d, err2 := c.Dup(ctx)
		x, err3 := gputest.Floats(ctx, c, dev, 1000, 1)
		y, err4 := gputest.Floats(ctx, c, dev, 1000, 1)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return err
		}
		z, err1 := gputest.Floats(ctx, c, dev, 1<<19, 1)
		u, err2 := gputest.Floats(ctx, c, dev, 1000, 1)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, c, z.Vec(), z.Vec(), ubcoll.Sum); err != nil { // registers z
			return err
		}
		failures := c.Stats().Failures
		r, err1 := y.Register(c)
		w, err2 := d.RegisterWindow(ctx, x.Vec(), 0)
		g, err3 := graph.Capture(ctx, c, func(c *ubcoll.Comm) error {
			return coll.AllReduce(ctx, c, u.Vec(), u.Vec(), ubcoll.Sum)
		})
		if err := errors.Join(err1, err2, err3, n.g.Close(), coll.Barrier(ctx, c)); err != nil {
			return err
		}
		token := ubcoll.Of(make([]byte, 1))
		if c.Rank() == 1 {
			return errors.Join(testkit.InOrder(
				func() error { return testkit.ErrOf(p2p.Recv(ctx, c, 0, token)) },
				func() error { return coll.AllReduce(ctx, c.On(n.s), x.Vec(), x.Vec(), ubcoll.Sum) },
				func() error { return n.s.Sync(ctx) }), r.Close(),
				w.Close(), n.ch.Close(), n.w.Close(), n.m.Close(), n.r.Close(), n.s.Close(), g.Close(), n.b.Free(), x.Free(), y.Free(),
				z.Free(), u.Free(), coll.Barrier(ctx, c), d.Close())
		}
		peer, late, again := 1, ubcoll.ErrTimeout, ubcoll.ErrClosed
		errs := []error{coll.AllReduce(ctx, c.On(n.s), x.Vec(), x.Vec(), ubcoll.Sum), // waits, the next ones behind it
			n.w.On(n.s).Signal(ctx, peer), n.ch.On(n.s).Signal(ctx), w.On(n.s).Signal(ctx, peer)}
		view := (*inside.Comm)(c).View()
		view.SetCloseTimeout(50 * time.Millisecond)
		for _, k := range []struct {
			name  string
			close func() error
		}{{"Graph.Close", g.Close}, {"Channel.Close", n.ch.Close}, {"Window.Close", n.w.Close}, {"Registration.Close", r.Close},
			{"Buffer.Free", z.Free}, {"Comm.Close", d.Close}} {
			errs = append(errs, testkit.WantsOf(0, k.name, k.close(), late), testkit.WantsOf(0, k.name, k.close(), again))
		}
		view.SetCloseTimeout(engine.CloseTimeout)
		errs = append(errs, p2p.Send(ctx, c, peer, token), n.s.Sync(ctx), coll.Barrier(ctx, c), n.m.Close(), n.r.Close(),
			n.s.Close())
		for _, b := range []interface{ Free() error }{n.b, x, y, u} { // once nothing holds them any more
			var err error
			testkit.Until(func() bool {
				err = b.Free()
				return !errors.Is(err, ubcoll.ErrInUse)
			})
			errs = append(errs, err)
		}
		if !testkit.Until(func() bool { return c.Stats().Memory.DeviceBytes <= start.DeviceBytes }) {
			errs = append(errs, errors.New("device memory was not given back"))
		}
		if n := c.Stats().Failures; n != failures {
			errs = append(errs, fmt.Errorf("%d failures to give memory back", n-failures))
		}
		return errors.Join(errs...)
	})
}
