package ubcoll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// benchWindow runs f as rank 0 of two, with a window of n float32 that allows atomics. Rank 1 waits.
func benchWindow(b *testing.B, n int, f func(ctx context.Context, w *ubcoll.Window)) {
	b.ReportAllocs()
	err := ubcoll.Local(b.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		m, err := ubcoll.Alloc[float32](c, ubcoll.Host, n)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, m.Vec(), ubcoll.WindowAtomic)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			f(ctx, w)
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		return w.Close()
	})
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkFetchAdd(b *testing.B) {
	benchWindow(b, 16, func(ctx context.Context, w *ubcoll.Window) {
		for b.Loop() {
			if _, err := w.FetchAdd(ctx, 1, 8, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAccumulate(b *testing.B) {
	for _, n := range []int{1, 64, 16 << 10, 1 << 20} {
		for _, what := range []string{"accumulate", "put"} { // the latter for comparison
			b.Run(fmt.Sprintf("%s/bytes=%d", what, 4*n), func(b *testing.B) {
				benchWindow(b, n, func(ctx context.Context, w *ubcoll.Window) {
					src := make([]float32, n)
					b.SetBytes(int64(4 * n))
					for b.Loop() {
						src[0]++ // fresh data
						err := error(nil)
						if what == "put" {
							err = w.Put(ctx, 1, 0, ubcoll.Of(src))
						} else {
							err = w.Accumulate(ctx, 1, 0, ubcoll.Of(src), ubcoll.Sum)
						}
						if err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}
