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

// Begin and End mark, in a rank's standard error, where a tracer is to count its system calls.
const (
	Begin = "steady: begin"
	End   = "steady: end"
)

// steady makes a call some times to warm up, and then more often between the marks.
func steady(warm, times int, call func() error) error {
	for k := range warm + times {
		if k == warm {
			fmt.Fprintln(os.Stderr, Begin)
		}
		if err := call(); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr, End)
	return nil
}

// Steady makes 100 large calls on registered memory, whose system calls a tracer counts.
func Steady(ctx context.Context, c *ubcoll.Comm) error {
	src, err := conform.Hold[float32](c, conform.Registered, 1<<20)
	if err != nil {
		return err
	}
	dst, err := conform.Hold[float32](c, conform.Registered, 1<<20)
	if err != nil {
		return err
	}
	if err := steady(1, 100, func() error { return coll.AllReduce(ctx, c, dst.Vec, src.Vec, ubcoll.Sum) }); err != nil {
		return err
	}
	return errors.Join(src.Free(), dst.Free())
}

// SmallCalls is how many calls SteadySmall makes.
const SmallCalls = 20000

// SteadySmall is Steady for calls of 32 KiB.
func SteadySmall(ctx context.Context, c *ubcoll.Comm) error {
	b, err := conform.Hold[float32](c, conform.Registered, 8<<10)
	if err != nil {
		return err
	}
	call := func() error { return coll.AllReduce(ctx, c, b.Vec, b.Vec, ubcoll.Max) }
	if err := steady(1000, SmallCalls, call); err != nil {
		return err
	}
	return b.Free()
}
