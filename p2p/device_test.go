package p2p_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// end is a channel and its memory on a device.
type end struct {
	buf *ubcoll.Buffer[byte]
	reg *ubcoll.Registration
	ch  *p2p.Channel
}

func openEnd(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, peer, n int) (*end, error) {
	e := &end{}
	var err error
	if e.buf, err = ubcoll.Alloc[byte](c, dev, n); err != nil {
		return nil, err
	}
	if e.reg, err = c.RegisterBuffer(e.buf.Vec()); err != nil {
		return nil, err
	}
	e.ch, err = p2p.Connect(ctx, c, peer, e.reg)
	return e, err
}

func (e *end) close() error { return errors.Join(e.ch.Close(), e.reg.Close(), e.buf.Free()) }

// trade is one round of a random test, the same on both ranks.
type trade struct {
	how           string
	src, dst, n   int
	width         p2p.PacketWidth
	stream, batch bool
}

const (
	part  = 1 << 20
	parts = 5 // source, destination, packets of two rounds, and the data to compare with
)

func newTrade(r *rand.Rand) trade {
	x := trade{how: []string{"put", "get", "packets", "put with signal"}[r.IntN(4)], src: r.IntN(64), dst: part + r.IntN(64),
		width: []p2p.PacketWidth{p2p.Packet8, p2p.Packet16}[r.IntN(2)], stream: r.IntN(2) == 0, batch: r.IntN(3) > 0}
	switch r.IntN(4) {
	case 0:
		x.n = r.IntN(40)
	case 1:
		x.n = r.IntN(5000)
	default:
		x.n = r.IntN(part/4 - 64)
	}
	if r.IntN(2) == 0 {
		x.src, x.dst, x.n = x.src&^15, x.dst&^15, x.n&^15
	}
	return x
}

// run moves this rank's source to the peer's destination, in both directions at once.
func (x trade) run(ctx context.Context, ch *p2p.Channel, packets int) error {
	do := func(b *p2p.Channel) error {
		switch x.how {
		case "put": // as in MSCCL++'s tutorial
			return testkit.InOrder(
				func() error { return b.RelaxedSignal(ctx) },
				func() error { return b.Wait(ctx) },
				func() error { return b.Put(ctx, x.dst, x.src, x.n) },
				func() error { return b.Signal(ctx) },
				func() error { return b.Wait(ctx) })
		case "put with signal":
			return testkit.InOrder(
				func() error { return b.PutWithSignal(ctx, x.dst, x.src, x.n) },
				func() error { return b.Wait(ctx) },
				func() error { return b.Flush(ctx) })
		case "get":
			return testkit.InOrder(
				func() error { return b.Signal(ctx) },
				func() error { return b.Wait(ctx) },
				func() error { return b.Get(ctx, x.dst, x.src, x.n) },
				func() error { return b.Signal(ctx) },
				func() error { return b.Wait(ctx) })
		}
		return testkit.InOrder(
			func() error { return b.PutPackets(ctx, packets, x.src, x.n, x.width) },
			func() error { return b.GetPackets(ctx, x.dst, packets, x.n, x.width) })
	}
	if x.batch {
		return ch.Batch(ctx, do)
	}
	return do(ch)
}

func TestChannelOnDevices(t *testing.T) {
	seed := testkit.Seed(t)
	ranks := []int{2, 3}
	if race.Enabled || testing.Short() { // the same code runs for both
		ranks = []int{2}
	}
	for _, n := range ranks {
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			gputest.Run(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				// A channel to each other rank; all pairs connect in the same order.
				for peer := range n {
					if peer == c.Rank() {
						continue
					}
					if err := trades(ctx, c, dev, peer, seed); err != nil {
						return fmt.Errorf("rank %d with %d: %w", c.Rank(), peer, err)
					}
				}
				return nil
			})
		})
	}
}

func trades(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, peer int, seed uint64) error {
	e, err := openEnd(ctx, c, dev, peer, parts*part)
	if err != nil {
		return err
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	pair := rand.New(rand.NewPCG(seed, uint64(min(c.Rank(), peer)*8+max(c.Rank(), peer))))
	rounds := 40
	if testkit.Daily() {
		rounds = 15
	}
	for round := range rounds {
		x, salt := newTrade(pair), pair.Uint64()
		of := func(rank int) []byte { return testkit.Bytes(rand.New(rand.NewPCG(salt, uint64(rank))), x.n) }
		host := bytes.Repeat([]byte{0xa5}, 2*part)
		copy(host[x.src:], of(c.Rank()))
		if err := e.buf.CopyFrom(ctx, host); err != nil {
			return err
		}
		// The peer's memory is ready once its signal has come.
		if err := testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) }); err != nil {
			return err
		}
		ch := e.ch
		if x.stream {
			ch = ch.On(s)
		}
		if err := x.run(ctx, ch, (2+2*(round%2))*part); err != nil {
			return fmt.Errorf("%+v: %w", x, err)
		}
		if x.stream {
			if err := s.Sync(ctx); err != nil {
				return fmt.Errorf("%+v: %w", x, err)
			}
		}
		got := make([]byte, 2*part)
		if err := e.buf.CopyTo(ctx, got); err != nil {
			return err
		}
		copy(host[x.dst:], of(peer))
		if !bytes.Equal(got, host) {
			return fmt.Errorf("round %d: wrong data after %+v", round, x)
		}
		if err := testkit.InOrder(func() error { return e.ch.Signal(ctx) }, func() error { return e.ch.Wait(ctx) }); err != nil {
			return err
		}
	}
	return errors.Join(s.Close(), e.close())
}

// TestChannelOnDevicesOrder makes calls on two streams and on none, which must run in call order, and reaches memory by
// a handle.
func TestChannelOnDevicesOrder(t *testing.T) {
	seed := testkit.Seed(t)
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		e, err := openEnd(ctx, c, dev, 1-c.Rank(), part)
		if err != nil {
			return err
		}
		mine, err := e.reg.MarshalBinary()
		if err != nil {
			return err
		}
		handles := make([]byte, 2*len(mine))
		if err := coll.AllGather(ctx, c, ubcoll.Of(handles), ubcoll.Of(mine)); err != nil {
			return err
		}
		m, err := c.Import(handles[(1-c.Rank())*len(mine):][:len(mine)])
		if err != nil {
			return err
		}
		ch, err := p2p.NewChannel(ctx, c, e.reg, m)
		if err != nil {
			return err
		}
		var streams [3]*ubcoll.Stream // a nil stream: the call blocks
		for i := range 2 {
			if streams[i], err = ubcoll.NewStream(dev); err != nil {
				return err
			}
		}
		if err := e.buf.CopyFrom(ctx, bytes.Repeat([]byte{byte(c.Rank() + 1)}, part)); err != nil {
			return err
		}
		if err := testkit.InOrder(func() error { return ch.Signal(ctx) }, func() error { return ch.Wait(ctx) }); err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
		const calls = 60
		for i := range calls {
			on := ch.On(streams[r.IntN(3)])
			if err := on.PutWithSignal(ctx, part/2+i, i, 1+r.IntN(2000)); err != nil {
				return err
			}
		}
		for range calls {
			if err := ch.On(streams[r.IntN(3)]).Wait(ctx); err != nil {
				return err
			}
		}
		// A surplus signal would end a wait too early.
		if err := testkit.InOrder(
			func() error { return streams[0].Sync(ctx) },
			func() error { return streams[1].Sync(ctx) },
			func() error { return ch.Signal(ctx) },
			func() error { return ch.Wait(ctx) }); err != nil {
			return err
		}
		got := make([]byte, part)
		if err := e.buf.CopyTo(ctx, got); err != nil {
			return err
		}
		for i := range calls {
			if got[part/2+i] != byte(2-c.Rank()) {
				return fmt.Errorf("byte %d is %d", i, got[part/2+i])
			}
		}
		return errors.Join(ch.Close(), m.Close(), streams[0].Close(), streams[1].Close(), e.close())
	})
}
