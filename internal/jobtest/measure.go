package jobtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// Steady makes calls for somebody who counts system calls: first some to warm up, then, between two writes to standard
// error that mark the place, 100 more.
func Steady(ctx context.Context, c *ubcoll.Comm) error {
	src, err := hold[float32](c, registered, 1<<20)
	if err != nil {
		return err
	}
	dst, err := hold[float32](c, registered, 1<<20)
	if err != nil {
		return err
	}
	call := func(n int) error {
		for ; n > 0; n-- {
			if err := coll.AllReduce(ctx, c, dst.vec, src.vec, ubcoll.Sum); err != nil {
				return err
			}
		}
		return nil
	}
	if err := call(1); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: begin")
	if err := call(100); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: end")
	return errors.Join(src.free(), dst.free())
}

// Pauses measures how long ReadMemStats, which stops the world, takes during a wait and during a 64 MiB all-reduce.
func Pauses(ctx context.Context, c *ubcoll.Comm) error {
	src, err := hold[float32](c, registered, 16<<20)
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
	for i := 0; i < 2; i++ { // the first one faults pages in
		err := measure("64 MiB", func() error {
			for k := 0; k < 150; k++ {
				if err := coll.AllReduce(ctx, c, src.vec, src.vec, ubcoll.Max); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return src.free()
}

// FirstUse measures the first all-reduce of a registered 1 MiB buffer that lies in a new, large arena, and how soon
// rank 0's abort is seen.
func FirstUse(ctx context.Context, c *ubcoll.Comm) error {
	for k := 0; k < 5; k++ {
		big, err := ubcoll.Alloc[byte](c, ubcoll.Host, 48<<20<<(k/2)) // takes up the arenas there are
		if err != nil {
			return err
		}
		b, err := hold[float32](c, registered, 1<<18)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		start := time.Now()
		if err := coll.AllReduce(ctx, c, b.vec, b.vec, ubcoll.Sum); err != nil {
			return err
		}
		first := time.Since(start)
		start = time.Now()
		if err := coll.AllReduce(ctx, c, b.vec, b.vec, ubcoll.Sum); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "first-use: rank %d: first %v, second %v\n", c.Rank(), first, time.Since(start))
		if err := errors.Join(b.free(), big.Free()); err != nil {
			return err
		}
	}
	if c.Size() == 1 {
		return nil
	}
	stamp := []int64{0}
	if c.Rank() == 0 {
		time.Sleep(300 * time.Millisecond)
		stamp[0] = time.Now().UnixNano()
		os.WriteFile(abortFile(), []byte(fmt.Sprint(stamp[0])), 0o600)
		c.Abort(errors.New("on purpose"))
		return nil
	}
	err := coll.Barrier(ctx, c)
	seen := time.Now().UnixNano()
	if !errors.Is(err, ubcoll.ErrAborted) {
		return fail(c, "abort gave %v", err)
	}
	b, rerr := os.ReadFile(abortFile())
	if rerr != nil {
		return rerr
	}
	fmt.Sscan(string(b), &stamp[0])
	fmt.Fprintf(os.Stderr, "first-use: rank %d: abort seen after %v\n", c.Rank(), time.Duration(seen-stamp[0]))
	return nil
}

func abortFile() string { return filepath.Join(os.Getenv("JOBTEST_DIR"), "abort") }

// SmallCalls is how many calls SteadySmall makes.
const SmallCalls = 20000

// SteadySmall is as Steady for calls of 32 KiB.
func SteadySmall(ctx context.Context, c *ubcoll.Comm) error {
	b, err := hold[float32](c, registered, 8<<10)
	if err != nil {
		return err
	}
	call := func(n int) error {
		for ; n > 0; n-- {
			if err := coll.AllReduce(ctx, c, b.vec, b.vec, ubcoll.Max); err != nil {
				return err
			}
		}
		return nil
	}
	if err := call(1000); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: begin")
	if err := call(SmallCalls); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "steady: end")
	return b.free()
}
