package coll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// BenchmarkDeviceAcross compares all-reduces between hosts on device memory with those on registered memory of the host,
// in turns, and the sizes of the parts that long ones are divided into. Buffers are set anew before each.
func BenchmarkDeviceAcross(b *testing.B) {
	for _, hosts := range []string{"ab", "aabb"} {
		for _, k := range []struct {
			bytes int
			parts []int
		}{
			{8, []int{4 << 20}},
			{64 << 10, []int{4 << 20}},
			{1 << 20, []int{256 << 10, 512 << 10, 4 << 20}},
			{64 << 20, []int{1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20}},
		} {
			for _, part := range k.parts {
				b.Run(fmt.Sprintf("%s/%d bytes/parts of %d", hosts, k.bytes, part), func(b *testing.B) {
					coll.SetStagedPart(b, part)
					calls := max(b.N, min(2000, 1<<30/k.bytes))
					var took [2][]time.Duration
					errs := devicesOnHosts(b, hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						d, err1 := gputest.Floats(ctx, c, dev, k.bytes/4, 1)
						h, err2 := ubcoll.Alloc[float32](c, ubcoll.Host, k.bytes/4)
						if err := errors.Join(err1, err2); err != nil {
							return err
						}
						fresh := make([]float32, k.bytes/4)
						for i := range calls {
							for j := range fresh {
								fresh[j] = float32(i + j%100)
							}
							copy(h.Slice(), fresh)
							if err := d.CopyFrom(ctx, fresh); err != nil {
								return err
							}
							for which, v := range []ubcoll.Vec{h.Vec(), d.Vec()} {
								if err := coll.Barrier(ctx, c); err != nil {
									return err
								}
								start := time.Now()
								if err := coll.AllReduce(ctx, c, v, v, ubcoll.Sum); err != nil {
									return err
								}
								if c.Rank() == 0 {
									took[which] = append(took[which], time.Since(start))
								}
							}
						}
						return errors.Join(d.Free(), h.Free())
					})
					require.NoError(b, errors.Join(errs...))
					for which, name := range []string{"host-us", "device-us"} {
						slices.Sort(took[which])
						b.ReportMetric(float64(took[which][calls/2].Nanoseconds())/1e3, name)
					}
				})
			}
		}
	}
}
