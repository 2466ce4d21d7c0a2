package ubcoll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// part is a window over a buffer on a device.
type part struct {
	buf *ubcoll.Buffer[byte]
	w   *ubcoll.Window
}

func openPart(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, n int, f ubcoll.WindowFlags) (*part, error) {
	p := &part{}
	var err error
	if p.buf, err = ubcoll.Alloc[byte](c, dev, n); err != nil {
		return nil, err
	}
	p.w, err = c.RegisterWindow(ctx, p.buf.Vec(), f)
	return p, err
}

func (p *part) close() error { return errors.Join(p.w.Close(), p.buf.Free()) }

// holds returns an error unless the buffer has these bytes at off.
func holds(ctx context.Context, b *ubcoll.Buffer[byte], off int, want []byte) error {
	got := make([]byte, off+len(want))
	if err := b.CopyTo(ctx, got); err != nil {
		return err
	}
	if got = got[off:]; !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("wrong data from byte %d of %d on: %d, want %d", i, len(want), got[i], want[i])
	}
	return nil
}

// noise is the data of rank in a round.
func noise(seed uint64, round, rank, n int) []byte {
	return testkit.Bytes(rand.New(rand.NewPCG(seed, uint64(round<<8+rank))), n)
}

// TestWindowOnDevices puts to and gets from all ranks, this one included, with memory of all kinds, blocking and on
// streams.
func TestWindowOnDevices(t *testing.T) {
	seed := testkit.Seed(t)
	for _, n := range testkit.Sample(4, []int{3, 1, 2, 4}) {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			gputest.Both(t, n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				return windowRounds(ctx, c, dev, seed)
			})
		})
	}
}

func windowRounds(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, seed uint64) error {
	const most = 100_000
	n := c.Size()
	// A place for what each rank puts, and one more for this rank's source.
	p, err := openPart(ctx, c, dev, (n+1)*most, ubcoll.WindowStrictOrdering|ubcoll.WindowCollSymmetric)
	if err != nil {
		return err
	}
	if p.w.Bytes() != (n+1)*most {
		return fmt.Errorf("the window has %d bytes", p.w.Bytes())
	}
	other, err := ubcoll.Alloc[byte](c, dev, most)
	if err != nil {
		return err
	}
	streams := make([]*ubcoll.Stream, 3) // a nil stream: the call blocks
	for i := range 2 {
		if streams[i], err = ubcoll.NewStream(dev); err != nil {
			return err
		}
	}
	mine := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
	on := func() *ubcoll.Window { return p.w.On(streams[mine.IntN(3)]) }
	all := rand.New(rand.NewPCG(seed, 99))
	for round := range 12 {
		size := []int{0, 1, 13, 8192, 50_000}[all.IntN(5)] + all.IntN(40)
		at := all.IntN(40)
		data := noise(seed, round, c.Rank(), size)
		src, whole := other.Vec().Slice(0, size), make([]byte, n*most)
		if mine.IntN(2) == 0 { // the source is in the window itself
			src, whole = p.buf.Vec().Slice(n*most, n*most+size), append(whole, data...)
		}
		if err := p.buf.CopyFrom(ctx, whole); err != nil {
			return err
		}
		if err := other.CopyFrom(ctx, data); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		for r := range n {
			w := on()
			err := w.Put(ctx, r, c.Rank()*most+at, src)
			if err == nil {
				err = on().Signal(ctx, r)
			}
			if err != nil {
				return fmt.Errorf("round %d, %d bytes to %d: %w", round, size, r, err)
			}
		}
		for r := range n {
			if err := on().Wait(ctx, r); err != nil {
				return err
			}
		}
		if err := streams[0].Sync(ctx); err != nil {
			return err
		}
		if err := streams[1].Sync(ctx); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		for r := range n {
			if err := holds(ctx, p.buf, r*most, append(make([]byte, at), noise(seed, round, r, size)...)); err != nil {
				return fmt.Errorf("round %d, of rank %d: %w", round, r, err)
			}
			// Get what another rank has put to rank r.
			from := (r + round) % n
			w := on()
			if err := testkit.InOrder(
				func() error { return w.Get(ctx, r, other.Vec().Slice(0, size), from*most+at) },
				func() error { return w.Flush(ctx) },
				func() error { return p.w.Flush(ctx) }); err != nil {
				return err
			}
			if err := holds(ctx, other, 0, noise(seed, round, from, size)); err != nil {
				return fmt.Errorf("round %d, got from rank %d: %w", round, r, err)
			}
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		next := (c.Rank() + 1) % n
		v, err := p.w.Peer(next)
		if c.Hostname(next) != c.Hostname(c.Rank()) {
			if err := testkit.Wants(err, ubcoll.ErrNotSupported); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		// A peer's part is the source of another operation.
		if err := coll.AllReduce(ctx, c, other.Vec().Slice(0, size), v.Slice(at, at+size), ubcoll.Max); err != nil {
			return err
		}
		if err := holds(ctx, other, 0, noise(seed, round, 0, size)); err != nil {
			return fmt.Errorf("round %d, the neighbour's part: %w", round, err)
		}
	}
	if err := testkit.Wants(p.buf.Free(), ubcoll.ErrInUse); err != nil {
		return err
	}
	// The last operation of a peer may still read this rank's part, by Peer.
	if err := coll.Barrier(ctx, c); err != nil {
		return err
	}
	return errors.Join(streams[0].Sync(ctx), streams[1].Sync(ctx), streams[0].Close(), streams[1].Close(), other.Free(), p.close())
}

// TestWindowOnDevicesReplayed captures calls on a stream of its own and replays them: the device counts signals, and
// the captured graph keeps its memory.
func TestWindowOnDevicesReplayed(t *testing.T) {
	const n = 20_000
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		p, err := openPart(ctx, c, dev, 2*n, 0)
		if err != nil {
			return err
		}
		src, err := ubcoll.Alloc[byte](c, dev, n)
		if err != nil {
			return err
		}
		cu, s, end, err := gputest.Foreign(dev)
		if err != nil {
			return err
		}
		if err := cu.BeginCapture(); err != nil {
			return err
		}
		w, peer := p.w.On(s), 1-c.Rank()
		err = testkit.InOrder(
			func() error { return w.Put(ctx, peer, 0, src.Vec()) },
			func() error { return w.Signal(ctx, peer) },
			func() error { return w.Wait(ctx, peer) },
			func() error { return w.Flush(ctx) },
			func() error { return w.Get(ctx, peer, p.buf.Vec().Slice(n, 2*n), 0) },
			func() error { return w.Signal(ctx, peer) },
			func() error { return w.Wait(ctx, peer) })
		g, err2 := cu.EndCapture()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if err := testkit.Wants(src.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		for round := range 6 {
			if err := testkit.InOrder(
				func() error { return src.CopyFrom(ctx, noise(1, round, c.Rank(), n)) },
				func() error { return g.Launch(cu) },
				func() error { return s.Sync(ctx) },
				func() error { return holds(ctx, p.buf, 0, noise(1, round, peer, n)) },
				func() error { return holds(ctx, p.buf, n, noise(1, round, c.Rank(), n)) },
				func() error { return coll.Barrier(ctx, c) }); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		return errors.Join(g.Close(), end(), p.close(), src.Free())
	})
}

// TestWindowOnDevicesLarge copies enough to use the copy engine.
func TestWindowOnDevicesLarge(t *testing.T) {
	testkit.LongOrRace(t)
	const n = 33<<20 + 5
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		p, err := openPart(ctx, c, dev, 2*n, 0)
		if err != nil {
			return err
		}
		peer := 1 - c.Rank()
		mine, theirs := bytes.Repeat([]byte{byte(3 + c.Rank())}, n), bytes.Repeat([]byte{byte(3 + peer)}, n)
		if err := p.buf.CopyFrom(ctx, mine); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if err := p.w.Put(ctx, peer, n, p.buf.Vec().Slice(0, n)); err != nil {
			return err
		}
		if err := p.w.Signal(ctx, peer); err != nil {
			return err
		}
		if err := p.w.Wait(ctx, peer); err != nil {
			return err
		}
		if err := holds(ctx, p.buf, n, theirs); err != nil {
			return err
		}
		if err := p.w.Get(ctx, peer, p.buf.Vec().Slice(0, n), n); err != nil {
			return err
		}
		if err := holds(ctx, p.buf, 0, mine); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		return p.close()
	})
}

// TestWindowOnDevicesMany makes windows one after the other: they leave neither channel ends nor memory behind.
func TestWindowOnDevicesMany(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[byte](c, dev, 4096)
		if err != nil {
			return err
		}
		var before ubcoll.Stats
		for k := range 300 { // each takes two of 512 channel ends
			w, err := c.RegisterWindow(ctx, b.Vec(), 0)
			if err != nil {
				return fmt.Errorf("window %d: %w", k, err)
			}
			if k%50 == 0 {
				err = testkit.InOrder(
					func() error { return w.Signal(ctx, 1-c.Rank()) },
					func() error { return w.Wait(ctx, 1-c.Rank()) })
			}
			if err := errors.Join(err, w.Close()); err != nil {
				return fmt.Errorf("window %d: %w", k, err)
			}
			if k == 9 {
				before = c.Stats()
			}
		}
		if after := c.Stats(); after.Memory.Allocations > before.Memory.Allocations+4 {
			return fmt.Errorf("%d allocations after 10 windows, %d after 300", before.Memory.Allocations,
				after.Memory.Allocations)
		}
		return b.Free()
	})
}

// TestWindowOnDevicesLimit opens windows until the channel ends are used up: all ranks return the error.
func TestWindowOnDevicesLimit(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[byte](c, dev, 4096)
		if err != nil {
			return err
		}
		var open []*ubcoll.Window
		for err == nil {
			var w *ubcoll.Window
			if w, err = c.RegisterWindow(ctx, b.Vec(), 0); err == nil {
				open = append(open, w)
			}
		}
		if err := testkit.Wants(err, ubcoll.ErrLimit); err != nil || len(open) != 256 {
			return fmt.Errorf("%d windows, then %w", len(open), err)
		}
		if err := testkit.InOrder(open[255].Close, func() error { return coll.Barrier(ctx, c) }); err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, b.Vec(), 0)
		if err != nil {
			return err
		}
		err = errors.Join(testkit.InOrder(
			func() error { return w.Signal(ctx, 1-c.Rank()) },
			func() error { return w.Wait(ctx, 1-c.Rank()) }), w.Close())
		for _, w := range open[:255] {
			err = errors.Join(err, w.Close())
		}
		return errors.Join(err, b.Free())
	})
}

// TestWindowOnDevicesSplit makes a window of some of the ranks.
func TestWindowOnDevicesSplit(t *testing.T) {
	gputest.Both(t, 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		d, err := c.Split(ctx, c.Rank()%2, -c.Rank())
		if err != nil {
			return err
		}
		p, err := openPart(ctx, d, dev, 100, 0)
		if err != nil {
			return err
		}
		peer := 1 - d.Rank()
		if err := p.buf.CopyFrom(ctx, []byte{byte(c.Rank())}); err != nil {
			return err
		}
		if err := p.w.Put(ctx, peer, 50, p.buf.Vec().Slice(0, 1)); err != nil {
			return err
		}
		if err := p.w.Signal(ctx, peer); err != nil {
			return err
		}
		if err := p.w.Wait(ctx, peer); err != nil {
			return err
		}
		if err := holds(ctx, p.buf, 50, []byte{byte((c.Rank() + 2) % 4)}); err != nil {
			return err
		}
		if err := coll.Barrier(ctx, d); err != nil {
			return err
		}
		return errors.Join(p.close(), d.Close())
	})
}

// TestWindowOnDevicesInGroup makes a window among the operations of a group.
func TestWindowOnDevicesInGroup(t *testing.T) {
	gputest.Both(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := ubcoll.Alloc[byte](c, dev, 100)
		if err != nil {
			return err
		}
		var w *ubcoll.Window
		err = ubcoll.Group(ctx, c, func(g *ubcoll.Comm) (err error) {
			if w, err = g.RegisterWindow(ctx, b.Vec(), 0); err != nil {
				return err
			}
			return testkit.Wants(w.Signal(ctx, 0), ubcoll.ErrClosed)
		})
		if err != nil {
			return err
		}
		peer := 1 - c.Rank()
		return errors.Join(testkit.InOrder(
			func() error { return w.Signal(ctx, peer) },
			func() error { return w.Wait(ctx, peer) }), w.Close(), b.Free())
	})
}

func TestWindowOnHostStream(t *testing.T) {
	err := ubcoll.Local(t.Context(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		p, err := openPart(ctx, c, ubcoll.Host, 300, 0)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		w, mine := p.w.On(s), bytes.Repeat([]byte{byte(c.Rank() + 1)}, 100)
		for r := range c.Size() {
			if err := testkit.InOrder(
				func() error { return w.Put(ctx, r, 100*c.Rank(), ubcoll.Of(mine)) },
				func() error { return w.Signal(ctx, r) }); err != nil {
				return err
			}
		}
		for r := range c.Size() {
			if err := w.Wait(ctx, r); err != nil {
				return err
			}
		}
		got := make([]byte, 300)
		next := (c.Rank() + 1) % c.Size()
		if err := testkit.InOrder(
			func() error { return w.Flush(ctx) },
			func() error { return s.Sync(ctx) },
			func() error { return coll.Barrier(ctx, c) },
			func() error { return w.Get(ctx, next, ubcoll.Of(got), 0) },
			func() error { return s.Sync(ctx) },
			func() error { return w.Put(ctx, next, 300, ubcoll.Of(mine)) },
			func() error { return testkit.Wants(s.Sync(ctx), ubcoll.ErrArgument) },
			func() error { return w.On(nil).Flush(ctx) },
			s.Close); err != nil {
			return err
		}
		for r := range c.Size() {
			if !bytes.Equal(got[100*r:100*(r+1)], bytes.Repeat([]byte{byte(r + 1)}, 100)) {
				err = errors.Join(err, fmt.Errorf("rank %d's bytes are wrong", r))
			}
		}
		return errors.Join(err, coll.Barrier(ctx, c), p.close())
	})
	require.NoError(t, err)
}
