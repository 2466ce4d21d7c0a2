package coll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

func TestDevicePhased(t *testing.T) {
	coll.SetPhased(t, 1, 4096)
	coll.SetStagedPart(t, 16<<10)
	requireAll(t, devicesOnHosts(t, "aabb", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		for _, n := range []int{1000000, 40000, 4096, 50001, 31, 32, 33} {
			b, err := gputest.Floats(ctx, c, dev, n, 1)
			if err != nil {
				return err
			}
			for range 4 {
				if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Avg); err != nil {
					return err
				}
			}
			if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
				return err
			}
			if err := gputest.All(ctx, c, b, 4); err != nil {
				return fmt.Errorf("%d: %w", n, err)
			}
			if c.Rank() == 0 {
				t.Log(n, c.LastOp())
			}
			if err := errors.Join(b.Free()); err != nil {
				return err
			}
		}
		return nil
	}))
}
