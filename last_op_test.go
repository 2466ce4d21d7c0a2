package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestLastOpAlone checks LastOp on a communicator of one rank, on the host and on a device: nothing is staged, and
// nothing is direct, because there are no peers.
func TestLastOpAlone(t *testing.T) {
	f := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err1 := gputest.Floats(ctx, c, dev, 1000, 1)
		b, err2 := gputest.Floats(ctx, c, dev, 1000, 0)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		counts := []int{1000}
		for _, k := range []struct {
			name string
			do   func() error
		}{
			{"all_reduce", func() error { return coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum) }},
			{"all_gather", func() error { return coll.AllGather(ctx, c, b.Vec(), a.Vec()) }},
			{"broadcast", func() error { return coll.Broadcast(ctx, c, a.Vec(), 0) }},
			{"all_gather_v", func() error { return coll.AllGatherV(ctx, c, b.Vec(), counts, a.Vec()) }},
			{"barrier", func() error { return coll.Barrier(ctx, c) }},
		} {
			if err := k.do(); err != nil {
				return err
			}
			o := c.LastOp()
			text := o.String()
			alone := k.name != "barrier"
			if o.Op != k.name || strings.Contains(text, "staged") || strings.Contains(text, "there are no peers") != alone ||
				o.Src.Alone != alone || o.Src.Direct {
				return fmt.Errorf("%s: %s", k.name, text)
			}
		}
		if n := c.Stats().Staged; n != 0 {
			return fmt.Errorf("%d buffers staged", n)
		}
		return errors.Join(a.Free(), b.Free())
	}
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), 1, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			return f(ctx, c, ubcoll.Host)
		}))
	})
	t.Run("device", func(t *testing.T) { gputest.Run(t, 1, ubcoll.Options{}, f) })
}

// TestLastOpRefused checks LastOp after an operation that a rank refused: its buffers were not used.
func TestLastOpRefused(t *testing.T) {
	require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		v := ubcoll.Of(make([]float32, 100000))
		err := coll.AllReduce(ctx, c, v, v, ubcoll.Op{})
		if text := c.LastOp().String(); !errors.Is(err, ubcoll.ErrArgument) || !strings.HasSuffix(text, "refused, 400000 bytes") {
			return fmt.Errorf("%s: %w", text, err)
		}
		if n := c.Stats().Staged; n != 0 {
			return fmt.Errorf("%d buffers staged", n)
		}
		return nil
	}))
}

// TestLastOpOneSided counts the puts and gets of channels and windows, open and closed, blocking and on streams.
func TestLastOpOneSided(t *testing.T) {
	f := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 1000, 1)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(a.Vec())
		if err != nil {
			return err
		}
		ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, a.Vec(), 0)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		last := c.LastOp().Seq
		part := a.Vec().Slice(0, 10)
		told := func(what string, puts, gets, bytes uint64) error {
			t := c.Stats()
			if t.Puts != puts || t.Gets != gets || t.OneSided != bytes {
				return fmt.Errorf("rank %d: %s: %d puts, %d gets, %d bytes, not %d, %d, %d", c.Rank(), what, t.Puts, t.Gets,
					t.OneSided, puts, gets, bytes)
			}
			return nil
		}
		wrong := ch.Put(ctx, 4000, 0, 100)
		// Ranks only read the first 2000 bytes of each other's memory; each rank writes to a place of its own behind
		// them.
		if err := testkit.InOrder(
			func() error { return ch.Put(ctx, 2000, 0, 100) },
			func() error { return ch.Get(ctx, 3000, 0, 10) },
			func() error { return ch.PutWithSignal(ctx, 2000, 0, 1) },
			func() error { return ch.Wait(ctx) },
			func() error { return ch.On(s).Put(ctx, 2000, 0, 1000) },
			func() error { return s.Sync(ctx) },
			func() error { return told("channel", 3, 1, 1111) },
			func() error {
				return ch.Batch(ctx, func(b *p2p.Channel) error {
					return errors.Join(b.Put(ctx, 2000, 0, 4), b.Put(ctx, 2004, 0, 4), b.Signal(ctx), b.Wait(ctx))
				})
			},
			func() error { return ch.PutPackets(ctx, 3200, 0, 8, p2p.Packet8) },
			func() error { return told("batch and packets", 6, 1, 1127) },
			func() error { return w.Put(ctx, 1-c.Rank(), 2000, part) },
			func() error { return w.Get(ctx, c.Rank(), a.Vec().Slice(850, 860), 0) },
			func() error { return w.On(s).Put(ctx, c.Rank(), 3600, part) },
			func() error { return s.Sync(ctx) },
			func() error { return told("window", 8, 2, 1247) }); err != nil {
			return err
		}
		if !errors.Is(wrong, ubcoll.ErrArgument) || c.LastOp().Seq != last {
			return fmt.Errorf("%s: %w", c.LastOp().String(), wrong)
		}
		return errors.Join(coll.Barrier(ctx, c), ch.Close(), w.Close(), told("closed", 8, 2, 1247), r.Close(), a.Free(), s.Close())
	}
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			return f(ctx, c, ubcoll.Host)
		}))
	})
	t.Run("device", func(t *testing.T) { gputest.Run(t, 2, ubcoll.Options{}, f) })
}

// TestForgottenSync closes communicators after operations on a stream have failed, with and without a Sync.
func TestForgottenSync(t *testing.T) {
	f := func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 100, 1)
		if err != nil {
			return err
		}
		for _, k := range []struct {
			name string
			ask  func(s *ubcoll.Stream) error // returns the stream's errors
			want bool                         // Close returns the error
		}{
			{"nobody asks", func(*ubcoll.Stream) error { return ubcoll.ErrArgument }, true},
			{"Sync", func(s *ubcoll.Stream) error { return s.Sync(ctx) }, false},
			{"Stream.Close", func(s *ubcoll.Stream) error { return s.Close() }, false},
		} {
			d, err1 := c.Dup(ctx)
			s, err2 := ubcoll.NewStream(dev)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			bad := ubcoll.Sum
			if d.Rank() == 1 {
				bad = ubcoll.Op{}
			}
			if err := coll.AllReduce(ctx, d.On(s), a.Vec(), a.Vec(), bad); err != nil {
				return err
			}
			if err := coll.AllReduce(ctx, d, a.Vec(), a.Vec(), ubcoll.Sum); err != nil { // queued behind the failed one
				return err
			}
			if err := k.ask(s); !errors.Is(err, ubcoll.ErrArgument) {
				return fmt.Errorf("rank %d: %s: %w", c.Rank(), k.name, err)
			}
			err := d.Close()
			if errors.Is(err, ubcoll.ErrArgument) != k.want || k.want && !strings.Contains(err.Error(), "Stream.Sync") ||
				!errors.Is(d.Close(), ubcoll.ErrClosed) {
				return fmt.Errorf("rank %d: %s: closed: %w", c.Rank(), k.name, err)
			}
			s.Close()
		}
		return a.Free()
	}
	t.Run("host", func(t *testing.T) {
		require.NoError(t, ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
			return f(ctx, c, ubcoll.Host)
		}))
	})
	t.Run("device", func(t *testing.T) { gputest.Run(t, 2, ubcoll.Options{}, f) })
}
