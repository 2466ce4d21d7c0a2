package ubcoll_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestAccessOnDevices tries, over device memory, what a peer has not allowed. Nothing is queued, and the memory stays as it
// was.
func TestAccessOnDevices(t *testing.T) {
	const n = 4096
	gputest.Enough(t, 2)
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		peer := 1 - c.Rank()
		b, err1 := ubcoll.Alloc[byte](c, dev, n)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		mine := bytes.Repeat([]byte{byte(1 + c.Rank())}, n)
		if err := b.CopyFrom(ctx, mine); err != nil {
			return err
		}
		refused := func(err error) error { return testkit.Wants(err, ubcoll.ErrArgument) }
		// Rank 1's memory may only be read, and rank 0 may not write to its own.
		r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{Access: []ubcoll.Access{
			ubcoll.AccessRemoteRead, ubcoll.AccessRemoteRead | ubcoll.AccessLocalWrite}[c.Rank()]})
		if err != nil {
			return err
		}
		ch, err := p2p.Connect(ctx, c, peer, r)
		if err != nil {
			return err
		}
		for _, ch := range []*p2p.Channel{ch, ch.On(s)} {
			if err := errors.Join(refused(ch.Put(ctx, 0, 0, 64)), refused(ch.PutWithSignal(ctx, 0, 0, 64)),
				refused(ch.PutPackets(ctx, 0, 0, 64, p2p.Packet16)),
				refused(ch.Batch(ctx, func(b *p2p.Channel) error {
					return errors.Join(b.Signal(ctx), b.Put(ctx, 0, 0, 64))
				})),
				testkit.Wants(testkit.ErrOf(ch.FetchAdd(ctx, 0, 1)), ubcoll.ErrNotSupported)); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			err = errors.Join(refused(ch.Get(ctx, 0, 0, 64)), refused(ch.GetPackets(ctx, 64, 0, 32, p2p.Packet16)))
		} else {
			err = ch.Get(ctx, 100, 0, 50)
			copy(mine[100:150], bytes.Repeat([]byte{1}, 50))
		}
		if err != nil {
			return err
		}
		// A signal of a refused batch would end the Wait early, and leave one behind.
		if err := testkit.InOrder(
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Wait(ctx) },
			func() error { return s.Sync(ctx) },
			func() error { return coll.Barrier(ctx, c) }); err != nil {
			return err
		}
		short, cancel := context.WithCancel(ctx)
		cancel()
		if err := testkit.Wants(ch.Wait(short), context.Canceled); err != nil {
			return err
		}
		got := make([]byte, n)
		if err := b.CopyTo(ctx, got); err != nil {
			return err
		}
		if !bytes.Equal(got, mine) {
			return errors.New("a refused call changed memory")
		}
		if err := errors.Join(ch.Close(), r.Close()); err != nil {
			return err
		}

		if err := testkit.Wants(testkit.ErrOf(c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)),
			ubcoll.ErrNotSupported); err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowReadOnly)
		if err != nil {
			return err
		}
		src, dst := b.Vec().Slice(0, 64), b.Vec().Slice(200, 264)
		for r := range 2 {
			for _, w := range []*ubcoll.Window{w, w.On(s)} {
				if err := errors.Join(refused(w.Put(ctx, r, 1000, src)), w.Get(ctx, r, dst, 0)); err != nil {
					return err
				}
			}
		}
		own, err := w.Peer(c.Rank())
		if err != nil {
			return err
		}
		return testkit.InOrder(
			func() error { return testkit.Wants(testkit.ErrOf(w.Peer(peer)), ubcoll.ErrNotSupported) },
			func() error { return coll.AllReduce(ctx, c, own, own, ubcoll.Max) }, // one's own part may be written
			func() error { return s.Sync(ctx) },
			func() error { return coll.Barrier(ctx, c) },
			w.Close, s.Close, b.Free)
	})
}
