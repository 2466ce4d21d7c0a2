package coll_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// TestDeviceSetup makes driver calls fail while communicators are made. Open still works; either all ranks use their
// devices or none does, and each says why not.
func TestDeviceSetup(t *testing.T) {
	emulated.Only(t)
	for _, call := range []string{"cuDevicePrimaryCtxRetain", "cuMemCreate", "cuMemAddressReserve", "cuMemMap",
		"cuMemSetAccess", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemRetainAllocationHandle",
		"cuMemHostRegister_v2", "cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuStreamCreate", "cuEventCreate",
		"cuMemsetD8Async", "cuPointerGetAttribute"} {
		for _, k := range testkit.Sample(4, []int{1, 2, 3, 4}) {
			t.Run(fmt.Sprintf("%s:%d", call, k), func(t *testing.T) {
				t.Setenv(env.CUDA.Name, "share")
				t.Setenv("UBCOLL_EMULATE_FAIL", fmt.Sprintf("%s:%d", call, k))
				have := [2]bool{}
				err := ubcoll.Local(t.Context(), 2, ubcoll.Options{Timeout: testkit.Limit}, func(ctx context.Context, c *ubcoll.Comm) error {
					dev, err := c.GPU()
					have[c.Rank()] = err == nil
					if err != nil && !errors.Is(err, fault.ErrNotSupported) && !errors.Is(err, fault.ErrLimit) { // the failure is want of memory
						return err
					}
					t.Log(err)
					x := []int32{1}
					if err := coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil || x[0] != 2 {
						return fmt.Errorf("on the host: %v, %w", x, err)
					}
					if err != nil {
						return nil
					}
					a, err := ubcoll.Alloc[float32](c, dev, 1000)
					if err != nil {
						return testkit.WantsOf(c.Rank(), "alloc", err, ubcoll.ErrLimit)
					}
					return a.Free()
				})
				require.Equal(t, have[0], have[1])
				require.NoError(t, err)
			})
		}
	}
}

// TestDeviceFails makes driver calls fail while operations are queued: the communicator soon breaks on all ranks.
func TestDeviceFails(t *testing.T) {
	emulated.Only(t)
	for _, call := range []string{"cuLaunchKernelEx", "cuStreamQuery", "cuStreamWaitEvent", "cuEventRecord"} {
		t.Run(call, func(t *testing.T) {
			t.Setenv(env.CUDA.Name, "share")
			t.Setenv("UBCOLL_EMULATE_FAIL", "")
			err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
				dev, err := c.GPU()
				if err != nil {
					return err
				}
				a, err1 := gputest.Floats(ctx, c, dev, 100, 1)
				s, err2 := ubcoll.NewStream(dev)
				u, err3 := ubcoll.NewStream(dev)
				if err := errors.Join(err1, err2, err3); err != nil {
					return err
				}
				if err := testkit.InOrder(
					func() error { return coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum) },
					func() error { return coll.Barrier(ctx, c) }); err != nil {
					return err
				}
				if c.Rank() == 0 {
					os.Setenv("UBCOLL_EMULATE_FAIL", call+":1")
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				begin := time.Now()
				for k := 0; err == nil && k < 10; k++ { // on the streams in turn, so that they wait for each other
					err = coll.AllReduce(ctx, c.On([]*ubcoll.Stream{s, u}[k%2]), a.Vec(), a.Vec(), ubcoll.Sum)
				}
				err = errors.Join(err, s.Sync(ctx), u.Sync(ctx))
				for k := 0; err == nil && k < 10; k++ {
					err = coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum)
				}
				switch {
				case err == nil || time.Since(begin) > testkit.Limit: // Options.Timeout is longer
					return fmt.Errorf("rank %d: %v after %v", c.Rank(), err, time.Since(begin))
				case c.Err() == nil:
					return fmt.Errorf("rank %d: usable after %w", c.Rank(), err)
				}
				return nil
			})
			require.NoError(t, err)
		})
	}
}
