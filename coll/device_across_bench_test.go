package coll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
)

// BenchmarkDeviceAcross compares all-reduces between hosts on device memory with those on registered memory of the host,
// in turns, blocking and on a stream followed by Sync, and the sizes of the parts that long ones are divided into. Buffers are
// set anew before each round.
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
					var took [3][]time.Duration
					errs := devicesOnHosts(b, hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						d, err1 := gputest.Floats(ctx, c, dev, k.bytes/4, 1)
						h, err2 := ubcoll.Alloc[float32](c, ubcoll.Host, k.bytes/4)
						queued, sync, end, err3 := gputest.View(ctx, c, dev, true)
						if err := errors.Join(err1, err2, err3); err != nil {
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
							for which, v := range []ubcoll.Vec{h.Vec(), d.Vec(), d.Vec()} {
								if err := coll.Barrier(ctx, c); err != nil {
									return err
								}
								start := time.Now()
								if which < 2 {
									err1 = coll.AllReduce(ctx, c, v, v, ubcoll.Sum)
								} else {
									err1 = errors.Join(coll.AllReduce(ctx, queued, v, v, ubcoll.Sum), sync())
								}
								if err1 != nil {
									return err1
								}
								if c.Rank() == 0 {
									took[which] = append(took[which], time.Since(start))
								}
							}
						}
						return errors.Join(end(), d.Free(), h.Free())
					})
					require.NoError(b, errors.Join(errs...))
					for which, name := range []string{"host-us", "device-us", "queued-us"} {
						slices.Sort(took[which])
						b.ReportMetric(float64(took[which][calls/2].Nanoseconds())/1e3, name)
					}
				})
			}
		}
	}
}

// BenchmarkDeviceAcrossReplays replays a graph of 20 all-reduces of device memory between hosts 1,000 times, while another
// goroutine of each rank does all-reduces of host memory on another communicator: how long one of those takes at most, and in the
// middle.
func BenchmarkDeviceAcrossReplays(b *testing.B) {
	var took []time.Duration
	var done [2]atomic.Int64
	rounds := max(b.N, 1000)
	errs := devicesOnHosts(b, "ab", engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		d, err1 := gputest.Floats(ctx, c, dev, 1000, 1)
		other, err2 := c.Dup(ctx)
		s, err3 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		g, err := graph.Capture(ctx, c.On(s), func(v *ubcoll.Comm) error {
			for range 20 {
				if err := coll.AllReduce(ctx, v, d.Vec(), d.Vec(), ubcoll.Avg); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		over := make(chan error)
		go func() { // until all ranks have replayed
			x := []int64{0}
			for x[0] < int64(c.Size()*rounds) {
				start := time.Now()
				x[0] = done[c.Rank()].Load()
				if err := coll.AllReduce(ctx, other, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum); err != nil {
					over <- err
					return
				}
				if c.Rank() == 0 {
					took = append(took, time.Since(start))
				}
			}
			over <- nil
		}()
		for range rounds {
			if err := errors.Join(g.Launch(ctx), s.Sync(ctx)); err != nil {
				return err
			}
			done[c.Rank()].Add(1)
		}
		return errors.Join(<-over, gputest.All(ctx, c, d, 1), g.Close(), s.Close(), other.Close(), d.Free())
	})
	require.NoError(b, errors.Join(errs...))
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "worst-us")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "median-us")
	b.ReportMetric(float64(len(took)), "all-reduces")
}

// BenchmarkDevicePhased compares all-reduces between hosts by phases on the devices with those that the hosts' processors
// reduce, in turns, blocking. Buffers are set anew before each call.
func BenchmarkDevicePhased(b *testing.B) {
	const never = 1 << 62
	for _, hosts := range []string{"aabb", "aaaabbbb"} {
		for _, bytes := range []int{256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20} {
			for _, part := range []int{1 << 20, 4 << 20, 16 << 20} {
				if bytes < part && part > 1<<20 {
					continue
				}
				b.Run(fmt.Sprintf("%s/%d bytes/parts of %d", hosts, bytes, part), func(b *testing.B) {
					coll.SetStagedPart(b, part)
					calls := max(b.N, min(100, 4<<30/bytes)) &^ 1
					var took [2][]time.Duration
					errs := devicesOnHosts(b, hosts, engine.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						d, err := gputest.Floats(ctx, c, dev, bytes/4, 1)
						if err != nil {
							return err
						}
						fresh := make([]float32, 1000)
						for i := range 2 * calls {
							for j := range fresh {
								fresh[j] = float32(i + j%100)
							}
							err := testkit.InOrder(
								func() error { return d.CopyFrom(ctx, fresh) },
								func() error { return coll.Barrier(ctx, c) },
								func() error {
									if c.Rank() == 0 {
										coll.SetPhased(b, []int{64 << 10, never}[i%2], 64<<10)
									}
									return coll.Barrier(ctx, c)
								})
							if err != nil {
								return err
							}
							start := time.Now()
							if err := coll.AllReduce(ctx, c, d.Vec(), d.Vec(), ubcoll.Max); err != nil {
								return err
							}
							if c.Rank() == 0 {
								took[i%2] = append(took[i%2], time.Since(start))
							}
						}
						return d.Free()
					})
					require.NoError(b, errors.Join(errs...))
					for which, name := range []string{"phased-us", "staged-us"} {
						slices.Sort(took[which])
						b.ReportMetric(float64(took[which][calls/2].Nanoseconds())/1e3, name)
					}
				})
			}
		}
	}
}
