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
	thereAndBack(b, func(ctx context.Context, c *ubcoll.Comm, s *ubcoll.Stream, v ubcoll.Vec) (send, recv, end func() error, err error) {
		view, peer := c, 1-c.Rank()
		if s != nil {
			view = c.On(s)
		}
		return func() error { return p2p.Send(ctx, view, peer, v) },
			func() error { return testkit.ErrOf(p2p.Recv(ctx, view, peer, v)) }, func() error { return nil }, nil
	})
}

// BenchmarkDeviceChannelBetween is BenchmarkDeviceBetween by PutWithSignal and Wait of a channel.
func BenchmarkDeviceChannelBetween(b *testing.B) {
	thereAndBack(b, func(ctx context.Context, c *ubcoll.Comm, s *ubcoll.Stream, v ubcoll.Vec) (send, recv, end func() error, err error) {
		r, err := c.RegisterBuffer(v)
		if err != nil {
			return nil, nil, nil, err
		}
		ch, err := p2p.Connect(ctx, c, 1-c.Rank(), r)
		if err != nil {
			return nil, nil, nil, err
		}
		on := ch.On(s)
		return func() error { return on.PutWithSignal(ctx, 0, 0, v.Len()) }, func() error { return on.Wait(ctx) },
			func() error { return errors.Join(ch.Close(), r.Close()) }, nil
	})
}

// way makes the two calls that move v, on a stream or not, and what ends them.
type way func(ctx context.Context, c *ubcoll.Comm, s *ubcoll.Stream, v ubcoll.Vec) (send, recv, end func() error, err error)

func thereAndBack(b *testing.B, way way) {
	for _, bytes := range []int{8, 4 << 10, 64 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprint(bytes, " bytes"), func(b *testing.B) {
			calls := max(b.N, min(2000, 1<<30/bytes))
			var took [3][]time.Duration
			gputest.Across(b, "ab", ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				d, err1 := ubcoll.Alloc[byte](c, dev, bytes)
				h, err2 := ubcoll.Alloc[byte](c, ubcoll.Host, bytes)
				s, err3 := ubcoll.NewStream(dev)
				if err := errors.Join(err1, err2, err3); err != nil {
					return err
				}
				var send, recv, end [3]func() error
				wait := [3]func() error{func() error { return nil }, func() error { return nil }, func() error { return s.Sync(ctx) }}
				for which, v := range []ubcoll.Vec{h.Vec(), d.Vec(), d.Vec()} {
					on := s
					if which < 2 {
						on = nil
					}
					var err error
					if send[which], recv[which], end[which], err = way(ctx, c, on, v); err != nil {
						return err
					}
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
					for which := range took {
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
						start := time.Now()
						calls := []func() error{send[which], recv[which], wait[which]}
						if c.Rank() == 1 {
							calls[0], calls[1] = recv[which], send[which]
						}
						if err := testkit.InOrder(calls...); err != nil {
							return err
						}
						if c.Rank() == 0 {
							took[which] = append(took[which], time.Since(start)/2)
						}
					}
				}
				return errors.Join(end[0](), end[1](), end[2](), s.Close(), d.Free(), h.Free())
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
