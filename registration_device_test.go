package ubcoll_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestRegistrationsOnDevicesEnd ends the communicator that device memory was registered with: the memory can be freed,
// or goes when the communicator closes.
func TestRegistrationsOnDevicesEnd(t *testing.T) {
	for _, abort := range []bool{false, true} {
		gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			d, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			before := c.Stats().Memory.DeviceBytes
			b, err := ubcoll.Alloc[float32](d, dev, 1<<20)
			if err != nil {
				return err
			}
			r, err := d.RegisterBuffer(b.Vec())
			if err != nil {
				return err
			}
			if err := coll.AllReduce(ctx, d, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
				return err
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if abort {
				d.Abort(errors.New("enough"))
			} else if err := d.Close(); err != nil {
				return err
			}
			if err := r.Close(); !errors.Is(err, ubcoll.ErrClosed) {
				return errors.Join(errors.New("the registration is open"), err)
			}
			if err := b.Free(); err != nil {
				return err
			}
			if abort {
				if err := d.Close(); err != nil {
					return err
				}
			}
			if after := c.Stats().Memory.DeviceBytes; after > before {
				return errors.New("the device memory is still there")
			}
			return coll.Barrier(ctx, c)
		})
	}
}
