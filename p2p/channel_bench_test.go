package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// benchChannel runs f as rank 0 of two; rank 1 answers every signal until rank 0 closes the channel.
func benchChannel(b *testing.B, f func(ctx context.Context, ch *p2p.Channel)) {
	err := ubcoll.Local(b.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		m, err := ubcoll.Alloc[byte](c, ubcoll.Host, 1<<21)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(m.Vec())
		if err != nil {
			return err
		}
		defer r.Close()
		ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			f(ctx, ch)
			return ch.Close()
		}
		for ch.Wait(ctx) == nil {
			if err := ch.Signal(ctx); err != nil {
				return err
			}
		}
		return ch.Close()
	})
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	b.ReportAllocs()
	benchChannel(b, func(ctx context.Context, ch *p2p.Channel) {
		for b.Loop() {
			if ch.Signal(ctx) != nil || ch.Wait(ctx) != nil {
				b.Fail()
			}
		}
	})
}

func BenchmarkSignal(b *testing.B) {
	b.ReportAllocs()
	benchChannel(b, func(ctx context.Context, ch *p2p.Channel) {
		for b.Loop() {
			if _, err := ch.Poll(); err != nil {
				b.Fail()
			}
		}
	})
}

func BenchmarkPut(b *testing.B) {
	b.ReportAllocs()
	benchChannel(b, func(ctx context.Context, ch *p2p.Channel) {
		for b.Loop() {
			if ch.Put(ctx, 0, 0, 64) != nil {
				b.Fail()
			}
		}
	})
}

// TestOneSidedAllocations: immediate calls of channels and windows on host memory allocate nothing.
func TestOneSidedAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 64)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, b.Vec(), 0)
		if err != nil {
			return err
		}
		peer, mine := 1-c.Rank(), ubcoll.Of(make([]byte, 32))
		ch, err := p2p.Connect(ctx, c, peer, r)
		if err != nil {
			return err
		}
		g, err := openRegion(ctx, c, ubcoll.Host, peer, 64)
		if err != nil {
			return err
		}
		s, err := p2p.NewSemaphore(ctx, c, peer, ubcoll.Host)
		if err != nil {
			return err
		}
		over, err := s.Channel(g.reg, g.remote)
		if err != nil {
			return err
		}
		for _, k := range []struct {
			name  string
			round func() error
		}{
			{"semaphore", func() error {
				return testkit.InOrder(
					func() error { return s.Signal(ctx) },
					func() error { return over.Wait(ctx) },
					func() error { return over.PutWithSignal(ctx, 0, 32, 32) },
					func() error { return s.Wait(ctx) })
			}},
			{"channel", func() error {
				return testkit.InOrder(
					func() error { return ch.Put(ctx, 0, 32, 32) },
					func() error { return ch.Get(ctx, 32, 0, 32) },
					func() error { return ch.Signal(ctx) },
					func() error { return ch.Wait(ctx) },
					func() error { return ch.PutWithSignal(ctx, 0, 32, 32) },
					func() error { return ch.Wait(ctx) },
					func() error { return ch.Flush(ctx) })
			}},
			{"window", func() error {
				return testkit.InOrder(
					func() error { return w.Put(ctx, peer, 0, mine) },
					func() error { return w.Get(ctx, peer, mine, 0) },
					func() error { return w.Put(ctx, c.Rank(), 32, mine) },
					func() error { return w.Signal(ctx, peer) },
					func() error { return w.Wait(ctx, peer) },
					func() error { return w.Flush(ctx) })
			}},
		} {
			const runs = 200
			round := func() {
				if err == nil {
					err = k.round()
				}
			}
			if c.Rank() == 1 {
				for range 1 + runs { // AllocsPerRun warms up once
					round()
				}
			} else if n := testing.AllocsPerRun(runs, round); n > 0 && err == nil {
				err = fmt.Errorf("%s: %v allocations", k.name, n)
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(ch.Close(), s.Close(), w.Close(), r.Close(), b.Free(), coll.Barrier(ctx, c), g.close())
	})
	require.NoError(t, err)
}
