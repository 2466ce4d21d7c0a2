package p2p_test

import (
	"context"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/p2p"
)

// benchChannel runs f as rank 0 of two, for whom the other end answers every signal until it closes.
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
