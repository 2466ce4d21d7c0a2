package ubcoll_test

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
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
