// Package measures has the suites for tests that count or time what a job does: system calls, pauses, first uses.
package measures

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// Steady makes calls for somebody who counts system calls: first some to warm up, then, between two writes to standard
// error that mark the place, 100 more.
func Steady(ctx context.Context, c *ubcoll.Comm) error {
	src, err := conform.Hold[float32](c, conform.Registered, 1<<20)
	if err != nil {
		return err
	}
	dst, err := conform.Hold[float32](c, conform.Registered, 1<<20)
	if err != nil {
		return err
	}
	call := func(n int) error {
		for ; n > 0; n-- {
			if err := coll.AllReduce(ctx, c, dst.Vec, src.Vec, ubcoll.Sum); err != nil {
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
	return errors.Join(src.Free(), dst.Free())
}

// SmallCalls is how many calls SteadySmall makes.
const SmallCalls = 20000

// SteadySmall is as Steady for calls of 32 KiB.
func SteadySmall(ctx context.Context, c *ubcoll.Comm) error {
	b, err := conform.Hold[float32](c, conform.Registered, 8<<10)
	if err != nil {
		return err
	}
	call := func(n int) error {
		for ; n > 0; n-- {
			if err := coll.AllReduce(ctx, c, b.Vec, b.Vec, ubcoll.Max); err != nil {
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
	return b.Free()
}
