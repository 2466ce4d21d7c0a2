package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
)

// Every rank puts its number into rank 0's memory.
func ExampleComm_RegisterWindow() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		b, err := ubcoll.Alloc[int64](c, ubcoll.Host, c.Size())
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowDefault)
		if err != nil {
			return err
		}
		defer w.Close()
		mine := []int64{int64(10 * c.Rank())}
		if err := w.Put(ctx, 0, 8*c.Rank(), ubcoll.Of(mine)); err != nil {
			return err
		}
		if err := w.Signal(ctx, 0); err != nil {
			return err
		}
		if c.Rank() != 0 {
			return nil
		}
		for r := range c.Size() {
			if err := w.Wait(ctx, r); err != nil {
				return err
			}
		}
		fmt.Println(b.Slice())
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [0 10 20]
}

// Every rank adds its gradient to parameters that rank 0 has, whenever it likes. Nobody serves.
func ExampleWindow_Accumulate() {
	err := ubcoll.Local(context.Background(), 4, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		params, err := ubcoll.Alloc[float32](c, ubcoll.Host, 3)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, params.Vec(), ubcoll.WindowAtomic)
		if err != nil {
			return err
		}
		gradient := []float32{1, 2, float32(c.Rank())}
		for range 100 {
			if err := w.Accumulate(ctx, 0, 0, ubcoll.Of(gradient), ubcoll.Sum); err != nil {
				return err
			}
		}
		if err := coll.Barrier(ctx, c); err != nil { // all have added
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(params.Slice())
		}
		if err := w.Close(); err != nil {
			return err
		}
		return params.Free()
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [400 800 600]
}

// Every rank takes tasks until there are none. The number of the next one is a word of rank 0.
func ExampleWindow_FetchAdd() {
	err := ubcoll.Local(context.Background(), 3, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		next, err := ubcoll.Alloc[uint64](c, ubcoll.Host, 1)
		if err != nil {
			return err
		}
		w, err := c.RegisterWindow(ctx, next.Vec(), ubcoll.WindowAtomic)
		if err != nil {
			return err
		}
		done := []uint64{0}
		for {
			task, err := w.FetchAdd(ctx, 0, 0, 1)
			if err != nil {
				return err
			}
			if task >= 1000 {
				break
			}
			done[0] += task // in a real program, work
		}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(done), ubcoll.Of(done), ubcoll.Sum); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("sum of all tasks:", done[0])
		}
		return w.Close()
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: sum of all tasks: 499500
}
