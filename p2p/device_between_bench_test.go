package p2p_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// BenchmarkDeviceBetween sends a message to another host and back, of memory of the host and of the device, in turns: blocking,
// and on a stream followed by Sync. Half of a round trip is reported, the median; buffers are set anew before each.
func BenchmarkDeviceBetween(b *testing.B) {
	for _, bytes := range []int{8, 4 << 10, 64 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprint(bytes, " bytes"), func(b *testing.B) {
			calls := max(b.N, min(2000, 1<<30/bytes))
			var took [3][]time.Duration
			gputest.Across(b, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				d, err1 := ubcoll.Alloc[byte](c, dev, bytes)
				h, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, bytes)
				queued, sync, end, err3 := gputest.View(ctx, c, dev, true)
				if err := errors.Join(err1, err2, err3); err != nil {
					return err
				}
				fresh := make([]byte, bytes)
				for i := range calls {
					for j := range fresh {
						fresh[j] = byte(i + j)
					}
					copy(h.Slice(), fresh)
					if err := d.CopyFrom(ctx, fresh); err != nil {
						return err
					}
					for which, v := range []ubcoll.Vec{h.Vec(), d.Vec(), d.Vec()} {
						view, wait := c, func() error { return nil }
						if which == 2 {
							view, wait = queued, sync
						}
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
						start := time.Now()
						send := func() error { return p2p.Send(ctx, view, 1-c.Rank(), v) }
						recv := func() error { return testkit.ErrOf(p2p.Recv(ctx, view, 1-c.Rank(), v)) }
						calls := []func() error{send, recv, wait}
						if c.Rank() == 1 {
							calls[0], calls[1] = recv, send
						}
						if err := testkit.InOrder(calls...); err != nil {
							return err
						}
						if c.Rank() == 0 {
							took[which] = append(took[which], time.Since(start)/2)
						}
					}
				}
				return errors.Join(end(), d.Free(), h.Free())
			})
			for which, name := range []string{"host-us", "device-us", "queued-us"} {
				if len(took[which]) > 0 {
					slices.Sort(took[which])
					b.ReportMetric(float64(took[which][calls/2].Nanoseconds())/1e3, name)
				}
			}
		})
	}
}
