package measures

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Pauses measures how long ReadMemStats, which stops the world, takes during a wait and during a 64 MiB all-reduce.
func Pauses(ctx context.Context, c *ubcoll.Comm) error {
	src, err := conform.Hold[float32](c, conform.Registered, 16<<20)
	if err != nil {
		return err
	}
	measure := func(what string, during func() error) error {
		done := make(chan error, 1)
		go func() { done <- during() }()
		var took []time.Duration
		var m runtime.MemStats
		for {
			select {
			case err := <-done:
				slices.Sort(took)
				if len(took) == 0 {
					return err
				}
				p99 := took[len(took)*99/100]
				fmt.Fprintf(os.Stderr, "pauses: rank %d: %s: %d stops, median %v, p99 %v, max %v\n", c.Rank(), what,
					len(took), took[len(took)/2], p99, took[len(took)-1])
				return err
			default:
				start := time.Now()
				runtime.ReadMemStats(&m)
				took = append(took, time.Since(start))
				time.Sleep(200 * time.Microsecond)
			}
		}
	}
	if c.Rank() == 0 { // the others wait for it
		time.Sleep(500 * time.Millisecond)
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	} else if err := measure("wait", func() error { return coll.Barrier(ctx, c) }); err != nil {
		return err
	}
	for i := 0; i < 2; i++ { // the first round faults pages in
		err := measure("64 MiB", func() error {
			for k := 0; k < 150; k++ {
				if err := coll.AllReduce(ctx, c, src.Vec, src.Vec, ubcoll.Max); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return src.Free()
}
