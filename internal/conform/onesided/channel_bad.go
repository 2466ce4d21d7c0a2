package onesided

import (
	"context"
	"errors"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// channelLimits goes out of bounds on either side.
func channelLimits(ctx context.Context, c *ubcoll.Comm) error {
	sizes := []int{4096, 8192}
	peer, r, ch, err := connect(ctx, c, sizes[c.Rank()&1])
	if err != nil || peer < 0 {
		return err
	}
	mine, theirs := sizes[c.Rank()&1], sizes[peer&1]
	const huge = 1<<63 - 1
	for _, k := range []struct {
		name    string
		dst, n  int
		src     int
		forGets bool
	}{
		{name: "past the end there", dst: theirs, n: 1},
		{name: "across the end there", dst: theirs - 10, n: 11},
		{name: "before the start there", dst: -1, n: 1},
		{name: "past the end here", src: mine, n: 1},
		{name: "across the end here", src: mine - 10, n: 11},
		{name: "before the start here", src: -1, n: 1},
		{name: "negative size", n: -1},
		{name: "huge size", n: huge},
		{name: "huge offset there", dst: huge, n: 1},
		{name: "huge offset here", src: huge, n: 1},
		{name: "sum overflows", dst: huge, src: huge, n: huge},
	} {
		for what, err := range map[string]error{
			"put":     ch.Put(ctx, k.dst, k.src, k.n),
			"signal":  ch.PutWithSignal(ctx, k.dst, k.src, k.n),
			"get":     ch.Get(ctx, k.src, k.dst, k.n),
			"packets": ch.PutPackets(ctx, k.dst, k.src, k.n, p2p.Packet16),
		} {
			if err := conform.Refused(c, what+" "+k.name, err, ubcoll.ErrArgument); err != nil {
				return err
			}
		}
	}
	for what, err := range map[string]error{
		"packets across the end": ch.PutPackets(ctx, theirs-16, 0, 9, p2p.Packet16),
		"packets not aligned":    ch.PutPackets(ctx, 4, 0, 8, p2p.Packet8),
		"packets of no width":    ch.PutPackets(ctx, 0, 0, 8, 12),
		"packets onto packets":   ch.GetPackets(ctx, 8, 0, 64, p2p.Packet8),
		"onto the last packet":   ch.GetPackets(ctx, 127, 0, 64, p2p.Packet8),
		"onto the first packet":  ch.GetPackets(ctx, 128, 184, 57, p2p.Packet8),
		"a bad rank":             testkit.ErrOf(p2p.Connect(ctx, c, c.Size(), r.Reg)),
		"a negative rank":        testkit.ErrOf(p2p.Connect(ctx, c, -1, r.Reg)),
		"its own rank":           testkit.ErrOf(p2p.Connect(ctx, c, c.Rank(), r.Reg)),
		"no registration":        testkit.ErrOf(p2p.Connect(ctx, c, peer, nil)),
		"no remote memory":       testkit.ErrOf(p2p.NewChannel(ctx, c, r.Reg, nil)),
	} {
		if err := conform.Refused(c, what, err, ubcoll.ErrArgument); err != nil {
			return err
		}
	}
	// Everything still works, and the peer's one signal is the only one.
	if err := testkit.InOrder(
		func() error { return ch.PutWithSignal(ctx, theirs-1, 0, 1) },
		func() error { return ch.Wait(ctx) }); err != nil {
		return err
	}
	if ok, err := ch.Poll(); ok || err != nil {
		return conform.Fail(c, "something that was refused has signalled: %v", err)
	}
	if !all(r.Mem, 0) {
		return conform.Fail(c, "something that was refused has written")
	}
	if err := ch.Close(); err != nil {
		return err
	}
	return r.Free()
}

// channelWaits ends waits without a signal.
func channelWaits(ctx context.Context, c *ubcoll.Comm) error {
	peer, r, ch, err := connect(ctx, c, 4096)
	if err != nil || peer < 0 {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := conform.Refused(c, "a wait", ch.Wait(short), context.DeadlineExceeded); err != nil {
		return err
	}
	again, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := conform.Refused(c, "packets", ch.GetPackets(again, 2048, 0, 8, p2p.Packet8),
		context.DeadlineExceeded); err != nil {
		return err
	}
	if c.Err() != nil {
		return c.Err()
	}
	// Both ends have waited in vain before one of them signals.
	token := ubcoll.Of(make([]byte, 1))
	if _, err := p2p.SendRecv(ctx, c, peer, ubcoll.Of(make([]byte, 1)), peer, token); err != nil {
		return err
	}
	// A signal that comes later is taken once; so are packets.
	copy(r.Mem[1024:], []byte("a packet"))
	if err := testkit.InOrder(
		func() error { return ch.PutPackets(ctx, 0, 1024, 8, p2p.Packet8) },
		func() error { return ch.GetPackets(ctx, 2048, 0, 8, p2p.Packet8) },
		func() error { return ch.Signal(ctx) },
		func() error { return ch.Wait(ctx) }); err != nil {
		return err
	}
	if string(r.Mem[2048:2056]) != "a packet" {
		return conform.Fail(c, "packets brought %q", r.Mem[2048:2056])
	}
	if ok, err := ch.Poll(); ok || err != nil {
		return conform.Fail(c, "a second signal: %v", err)
	}
	// A Close from another goroutine ends a wait.
	time.AfterFunc(20*time.Millisecond, func() { ch.Close() })
	if err := conform.Refused(c, "a wait on a channel that is closed", ch.Wait(ctx), ubcoll.ErrClosed); err != nil {
		return err
	}
	return r.Free()
}

// channelEnds uses what is closed, here or at the peer.
func channelEnds(ctx context.Context, c *ubcoll.Comm) error {
	peer, r, ch, err := connect(ctx, c, 4096)
	if err != nil || peer < 0 {
		return err
	}
	if c.Rank() < peer {
		// Two signals, then Close.
		if err := errors.Join(testkit.InOrder(
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Signal(ctx) }), ch.Close()); err != nil {
			return err
		}
		for what, err := range map[string]error{
			"put": ch.Put(ctx, 0, 0, 1), "get": ch.Get(ctx, 0, 0, 1), "signal": ch.Signal(ctx), "wait": ch.Wait(ctx),
			"flush": ch.Flush(ctx), "poll": testkit.ErrOf(ch.Poll()), "close": ch.Close(),
			"packets": ch.PutPackets(ctx, 0, 0, 8, p2p.Packet8), "take": ch.GetPackets(ctx, 0, 64, 8, p2p.Packet8),
		} {
			if err := conform.Refused(c, what+" after Close", err, ubcoll.ErrClosed); err != nil {
				return err
			}
		}
	} else {
		if err := testkit.InOrder(func() error { return ch.Wait(ctx) }, func() error { return ch.Wait(ctx) }); err != nil {
			return err
		}
		if err := conform.Refused(c, "a wait for one who has closed", ch.Wait(ctx), ubcoll.ErrClosed); err != nil {
			return err
		}
		if err := ch.Close(); err != nil {
			return err
		}
	}
	// If a registration is closed, a channel over it is stale on both sides.
	if ch, err = p2p.Connect(ctx, c, peer, r.Reg); err != nil {
		return err
	}
	if c.Rank() < peer {
		if err := testkit.InOrder(
			r.Reg.Close,
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Wait(ctx) }); err != nil {
			return err
		}
	} else if err := testkit.InOrder(
		func() error { return ch.Wait(ctx) },
		func() error { return ch.Signal(ctx) }); err != nil {
		return err
	}
	if err := errors.Join(conform.Refused(c, "put", ch.Put(ctx, 0, 0, 1), ubcoll.ErrStale),
		conform.Refused(c, "get", ch.Get(ctx, 0, 0, 1), ubcoll.ErrStale)); err != nil {
		return err
	}
	// Memory with an open registration cannot be freed.
	if c.Rank() > peer {
		if err := conform.Refused(c, "free", r.Buf.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		if err := r.Reg.Close(); err != nil {
			return err
		}
	}
	return errors.Join(ch.Close(), r.Buf.Free())
}
