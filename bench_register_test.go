package ubcoll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
)

// BenchmarkRegister is the first registration of a buffer, which locks it. Its close, which unlocks it, is not timed.
func BenchmarkRegister(b *testing.B) {
	for _, n := range []int{4 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			err := ubcoll.Local(b.Context(), 1, ubcoll.Options{}, func(_ context.Context, c *ubcoll.Comm) error {
				buf, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
				if err != nil {
					return err
				}
				for b.Loop() {
					r, err := c.RegisterBuffer(buf.Vec())
					if err != nil {
						return err
					}
					b.StopTimer()
					if err := r.Close(); err != nil {
						return err
					}
					b.StartTimer()
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
