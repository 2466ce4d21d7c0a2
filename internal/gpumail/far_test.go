package gpumail_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/gpu"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestSlotsAfter closes a communicator with messages between hosts: their slots are free for others, but not if it is broken,
// since a kernel may still copy there.
func TestSlotsAfter(t *testing.T) {
	for _, broken := range []bool{false, true} {
		gputest.Across(t, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
			d := gpu.DeviceOf((*inside.Comm)(c).View().Comm).Domain
			first, err := d.TakePinned(1)
			if err != nil {
				return err
			}
			d.GivePinned(first)
			buf, err := ubcoll.Alloc[byte](c, dev, 8)
			if err != nil {
				return err
			}
			k, err := c.Dup(ctx)
			if err != nil {
				return err
			}
			if c.Rank() == 0 {
				err = p2p.Send(ctx, k, 1, buf.Vec()) // from first, the only memory that is free
			} else {
				_, err = p2p.Recv(ctx, k, 0, buf.Vec())
			}
			err = errors.Join(err, coll.Barrier(ctx, c))
			if broken {
				k.Abort(errors.New("enough"))
			}
			if err := errors.Join(err, k.Close()); err != nil {
				return err
			}
			next, err := d.TakePinned(1)
			if err == nil && (next != first) != broken {
				err = fmt.Errorf("broken is %v, and others get the memory: %v", broken, next == first)
			}
			return errors.Join(err, buf.Free(), coll.Barrier(ctx, c))
		})
	}
}
