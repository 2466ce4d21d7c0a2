//go:build cgo

package p2p_test

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/hw/verbs/verbstest"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestBetweenOrder: puts to a strictly ordered window land in order, and a Get sees what the same rank has put, packed or accumulated before, short or long, though short puts
// go in messages that the owner's process has to take, and the device answers the Get without it. Over the double.
func TestBetweenOrder(t *testing.T) {
	t.Setenv("UBCOLL_IB", "on")
	t.Setenv("UBCOLL_REQUIRE", "verbs")
	verbstest.Over(t, verbstest.Knobs{"SILENT": "1"}, func(t *testing.T) {
		twoHosts(t, func(ctx context.Context, c *ubcoll.Comm) error {
			const n = 64 << 10
			b, err := ubcoll.Alloc[byte](c, ubcoll.Host, 2*n)
			if err != nil {
				return err
			}
			r, err := c.RegisterWith(b.Vec(), ubcoll.RegisterOptions{})
			if err != nil {
				return err
			}
			ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
			if err != nil {
				return err
			}
			w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowAtomic)
			if err != nil {
				return err
			}
			strict, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowStrictOrdering)
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				put, long := b.Vec().Slice(n, n+8), b.Vec().Slice(n, 2*n)
				var i uint64
				for _, k := range []struct {
					name     string
					put, get func() error
				}{
					{"channel", func() error { return ch.Put(ctx, 0, n, 8) }, func() error { return ch.Get(ctx, 0, 0, n) }},
					{"window", func() error { return w.Put(ctx, 1, 0, put) },
						func() error { return w.Get(ctx, 1, b.Vec().Slice(0, n), 0) }},
					{"accumulate", func() error { return w.Accumulate(ctx, 1, 0, put, ubcoll.Replace) },
						func() error { return w.Get(ctx, 1, b.Vec().Slice(0, n), 0) }},
					{"short get", func() error { return w.Put(ctx, 1, 0, put) },
						func() error { return w.Get(ctx, 1, b.Vec().Slice(0, 64), 0) }},
					{"puts that overlap", func() error {
						binary.LittleEndian.PutUint64(b.Slice()[n:], 1<<40)
						if err := strict.Put(ctx, 1, 0, put); err != nil {
							return err
						}
						binary.LittleEndian.PutUint64(b.Slice()[n:], i)
						return errors.Join(strict.Put(ctx, 1, 0, long), strict.Flush(ctx))
					}, func() error { return w.Get(ctx, 1, b.Vec().Slice(0, n), 0) }},
				} {
					for i = range uint64(100) {
						binary.LittleEndian.PutUint64(b.Slice()[n:], i)
						if err := k.put(); err != nil {
							return err
						}
						if err := k.get(); err != nil {
							return err
						}
						if got := binary.LittleEndian.Uint64(b.Slice()); got != i {
							return conform.Fail(c, "%s: got %d, put %d", k.name, got, i)
						}
					}
				}
			}
			return coll.Barrier(ctx, c)
		})
	})
}
