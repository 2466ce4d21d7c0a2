package onesided

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Channels connects every pair of ranks, and moves data both ways in all possible ways.
func Channels(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		return nil
	}
	return conform.Each(ctx, c, channelData, channelOrder, channelMany, channelLimits, channelWaits, channelEnds,
		channelStream)
}

const half = 3 << 20

// channelData puts, gets and sends packets between all pairs at once, with one goroutine for each pair.
func channelData(ctx context.Context, c *ubcoll.Comm) error {
	var wg sync.WaitGroup
	errs := make([]error, c.Size())
	regions := make([]*conform.Region, c.Size())
	for p := range c.Size() {
		if p == c.Rank() {
			continue
		}
		var err error
		if regions[p], err = conform.NewRegion(c, 2*half+4096); err != nil {
			return err
		}
		ch, err := p2p.Connect(ctx, c, p, regions[p].Reg)
		if err != nil {
			return err
		}
		wg.Go(func() {
			if errs[p] = exchangeData(ctx, c, ch, regions[p].Mem); errs[p] == nil {
				errs[p] = ch.Close()
			}
		})
	}
	wg.Wait()
	for _, r := range regions {
		if r != nil {
			errs = append(errs, r.Free())
		}
	}
	return errors.Join(errs...)
}

func exchangeData(ctx context.Context, c *ubcoll.Comm, ch *p2p.Channel, mem []byte) error {
	peer := ch.Peer()
	sizes := []int{0, 1, 3, 7, 8, 9, 63, 64, 65, 1000, 4096, 4097, 65536, 65537, 1 << 20}
	for round, n := range sizes {
		off, to := round%3, half+round%5 // both aligned and not
		sent, want := conform.Pattern(c.Rank(), round, n), conform.Pattern(peer, round, n)
		same := func(what string, at int) error {
			if !bytes.Equal(mem[at:at+n], want) {
				return conform.Fail(c, "%s of %d bytes from rank %d: wrong data", what, n, peer)
			}
			return nil
		}
		copy(mem[off:], sent)
		// A put with its signal, or followed by one.
		var err error
		if round%2 == 0 {
			err = ch.PutWithSignal(ctx, to, off, n)
		} else {
			err = testkit.InOrder(
				func() error { return ch.Put(ctx, to, off, n) },
				func() error { return ch.Flush(ctx) },
				func() error { return ch.Signal(ctx) })
		}
		if err == nil {
			err = testkit.InOrder(func() error { return ch.Wait(ctx) }, func() error { return same("put", to) })
		}
		if err != nil {
			return err
		}
		// A get, after the peer has seen the put.
		clear(mem[half:])
		err = testkit.InOrder(
			func() error { return ch.RelaxedSignal(ctx) },
			func() error { return ch.Wait(ctx) },
			func() error { return ch.Get(ctx, to, off, n) },
			func() error { return same("get", to) })
		if err != nil {
			return err
		}
		for _, w := range []p2p.PacketWidth{p2p.Packet8, p2p.Packet16} {
			// Neither rank may overwrite what the other still reads.
			if err := testkit.InOrder(func() error { return ch.Signal(ctx) }, func() error { return ch.Wait(ctx) }); err != nil {
				return err
			}
			land, out := half+64*(round%2), half+64+2*(1<<20)+8
			if err := testkit.InOrder(
				func() error { return ch.PutPackets(ctx, land, off, n, w) },
				func() error { return ch.GetPackets(ctx, out, land, n, w) },
				func() error { return same("packets", out) }); err != nil {
				return err
			}
		}
		if err := testkit.InOrder(func() error { return ch.Signal(ctx) }, func() error { return ch.Wait(ctx) }); err != nil {
			return err
		}
	}
	if ok, err := ch.Poll(); ok || err != nil {
		return conform.Fail(c, "a signal is left: %v %v", ok, err)
	}
	return nil
}

// connect connects this rank with its partner over a new region of n bytes. peer is -1 if it has none.
func connect(ctx context.Context, c *ubcoll.Comm, n int) (peer int, r *conform.Region, ch *p2p.Channel, err error) {
	if peer = conform.Partner(c); peer < 0 {
		return peer, nil, nil, nil
	}
	if r, err = conform.NewRegion(c, n); err != nil {
		return peer, nil, nil, err
	}
	ch, err = p2p.Connect(ctx, c, peer, r.Reg)
	return peer, r, ch, err
}

// channelOrder makes several channels between two ranks: the k-th on one side connects to the k-th on the other. It
// also makes more channels, one after the other, than there is room for at a time.
func channelOrder(ctx context.Context, c *ubcoll.Comm) error {
	peer := conform.Partner(c)
	if peer < 0 {
		return nil
	}
	r, err := conform.NewRegion(c, 4096)
	if err != nil {
		return err
	}
	var chs []*p2p.Channel
	for range 5 {
		ch, err := p2p.Connect(ctx, c, peer, r.Reg)
		if err != nil {
			return err
		}
		chs = append(chs, ch)
	}
	for i := range chs {
		r.Mem[i] = byte(10*c.Rank() + i)
	}
	for i, ch := range chs {
		if err := ch.PutWithSignal(ctx, 100+i, i, 1); err != nil {
			return err
		}
		for range i {
			if err := ch.Signal(ctx); err != nil {
				return err
			}
		}
	}
	for i := len(chs) - 1; i >= 0; i-- {
		for range i + 1 {
			if err := chs[i].Wait(ctx); err != nil {
				return err
			}
		}
		if r.Mem[100+i] != byte(10*peer+i) {
			return conform.Fail(c, "channel %d brought %d", i, r.Mem[100+i])
		}
		if ok, err := chs[i].Poll(); ok || err != nil {
			return conform.Fail(c, "channel %d has a signal more: %v", i, err)
		}
	}
	for _, ch := range chs {
		if err := ch.Close(); err != nil {
			return err
		}
	}
	for k := range 1200 {
		ch, err := p2p.Connect(ctx, c, peer, r.Reg)
		if err != nil {
			return fmt.Errorf("channel %d: %w", k, err)
		}
		if err := errors.Join(testkit.InOrder(
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Wait(ctx) }), ch.Close()); err != nil {
			return err
		}
	}
	return r.Free()
}

// channelMany makes all channels that there is room for, and one more.
func channelMany(ctx context.Context, c *ubcoll.Comm) error {
	r, err := conform.NewRegion(c, 4096)
	if err != nil {
		return err
	}
	var chs []*p2p.Channel
	for peer := conform.Partner(c); peer >= 0; {
		ch, err := p2p.Connect(ctx, c, peer, r.Reg)
		if err != nil {
			if err := conform.Refused(c, "a channel too many", err, ubcoll.ErrLimit); err != nil {
				return err
			}
			if len(chs) != 512 {
				return conform.Fail(c, "%d channels are the limit", len(chs))
			}
			break
		}
		chs = append(chs, ch)
	}
	for _, ch := range chs {
		if err := ch.Close(); err != nil {
			return err
		}
	}
	if err := coll.Barrier(ctx, c); err != nil { // both ends must be closed
		return err
	}
	if peer := conform.Partner(c); peer >= 0 {
		ch, err := p2p.Connect(ctx, c, peer, r.Reg)
		if err != nil {
			return err
		}
		if err := errors.Join(testkit.InOrder(
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Wait(ctx) }), ch.Close()); err != nil {
			return err
		}
	}
	return r.Free()
}

// channelStream queues a channel's operations.
func channelStream(ctx context.Context, c *ubcoll.Comm) error {
	peer, r, ch, err := connect(ctx, c, 4096)
	if err != nil || peer < 0 {
		return err
	}
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	q := ch.On(s)
	copy(r.Mem, conform.Pattern(c.Rank(), 1, 64))
	for k := range 10 {
		if err := testkit.InOrder(
			func() error { return q.Put(ctx, 1000+100*k, k, 50) },
			func() error { return q.Signal(ctx) },
			func() error { return q.Wait(ctx) }); err != nil {
			return err
		}
	}
	if err := testkit.InOrder(
		func() error { return q.PutPackets(ctx, 2048, 0, 64, p2p.Packet16) },
		func() error { return q.GetPackets(ctx, 3000, 2048, 64, p2p.Packet16) },
		func() error { return s.Sync(ctx) }); err != nil {
		return err
	}
	want := conform.Pattern(peer, 1, 64)
	for k := range 10 {
		if at := 1000 + 100*k; at+50 <= 2048 && !bytes.Equal(r.Mem[at:at+50], want[k:k+50]) {
			return conform.Fail(c, "put %d on a stream: wrong data", k)
		}
	}
	if !bytes.Equal(r.Mem[3000:3064], want) {
		return conform.Fail(c, "packets on a stream: wrong data")
	}
	if err := q.Put(ctx, -1, 0, 1); err != nil {
		return err
	}
	if err := conform.Refused(c, "the stream's error", s.Sync(ctx), ubcoll.ErrArgument); err != nil {
		return err
	}
	return errors.Join(s.Close(), ch.Close(), r.Free())
}
