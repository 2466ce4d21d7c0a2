package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestSharedDevicesAreTold runs five ranks, on fewer devices if there are fewer. LastOp says how many ranks have this
// rank's device, and the log which ones, once for each device that ranks share.
func TestSharedDevicesAreTold(t *testing.T) {
	const ranks = 5
	logger, log := testkit.Logs(slog.LevelInfo)
	var devices atomic.Int32
	gputest.Run(t, ranks, ubcoll.Options{Logger: logger}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		all, err := cuda.Devices()
		if err != nil {
			return err
		}
		devices.Store(int32(len(all)))
		b, err := gputest.Floats(ctx, c, dev, 1000, 1)
		if err != nil {
			return err
		}
		told := func(what string) error {
			n, want := len(sharers(dev, ranks, len(all))), "GPU kernels"
			if n > 1 {
				want += fmt.Sprintf(" on a device that %d ranks share", n)
			}
			last := c.LastOp()
			for _, o := range append(last.Members, last) {
				if len(o.Levels) != 1 || o.Levels[0].Transport != want || strings.Contains(o.String(), "share") != (n > 1) {
					return fmt.Errorf("rank %d, %s: want %q: %+v: %v", c.Rank(), what, want, o.Levels, o)
				}
			}
			return nil
		}
		steps := []func() error{
			func() error { return allReduce(ctx, c, b.Vec()) },
			func() error { return told("a collective") },
			func() error {
				return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return allReduce(ctx, g, b.Vec()) })
			},
			func() error { return told("a group") },
		}
		if peer := c.Rank() ^ 1; peer < ranks {
			steps = append(steps, func() error {
				if peer > c.Rank() {
					return p2p.Send(ctx, c, peer, b.Vec())
				}
				return testkit.ErrOf(p2p.Recv(ctx, c, peer, b.Vec()))
			}, func() error { return told("a message") })
		}
		return testkit.InOrder(append(steps, b.Free)...)
	})
	shared := 0
	for d := range min(int(devices.Load()), ranks) {
		if of := sharers(ubcoll.CUDA(d), ranks, int(devices.Load())); len(of) > 1 {
			require.Contains(t, log.String(), fmt.Sprintf(`msg="ubcoll: ranks share a device" device=cuda:%d ranks="%v"`, d, of))
			shared++
		}
	}
	require.Equal(t, shared, strings.Count(log.String(), "share a device"), log)
	require.NotContains(t, log.String(), "take turns")
}

// sharers returns which of that many ranks have device d of that many.
func sharers(d ubcoll.Device, ranks, devices int) (all []int) {
	for r := range ranks {
		if ubcoll.CUDA(r%devices) == d {
			all = append(all, r)
		}
	}
	return all
}

// TestSharedStreams has work on many streams of a device that ranks share, at the same time and one after the other. Ranks
// 0 and 4 have the same device.
func TestSharedStreams(t *testing.T) {
	emulated.Only(t) // a real device may have other queues
	gputest.Enough(t, 4)
	const most = 30 // streams with work, of 32 queues
	for _, k := range []struct {
		name    string
		streams int // of rank 0, beside rank 4's own
		rounds  int // one after the other, each on other streams
		refused bool
	}{
		{"as many as there are queues", most - 1, 1, false},
		{"one more", most, 1, true},
		{"as many again", most - 1, 2, false},
	} {
		t.Run(k.name, func(t *testing.T) {
			queued := make(chan struct{}, 4*k.rounds) // rank 0 has queued what the others have not called yet
			gputest.Run(t, 5, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				b, err := gputest.Floats(ctx, c, dev, 10, 1)
				if err != nil {
					return err
				}
				var errs []error
				for range k.rounds {
					if c.Rank() != 0 {
						<-queued
						for range k.streams {
							errs = append(errs, allReduce(ctx, c, b.Vec()))
						}
						continue
					}
					var all []*ubcoll.Stream
					for range k.streams {
						s, err := ubcoll.NewStream(dev)
						if err != nil {
							return err
						}
						all = append(all, s)
						errs = append(errs, allReduce(ctx, c.On(s), b.Vec()))
					}
					for range c.Size() - 1 {
						queued <- struct{}{}
					}
					for _, s := range all {
						errs = append(errs, s.Sync(ctx), s.Close())
					}
				}
				err = errors.Join(append(errs, b.Free())...)
				if !k.refused {
					return err
				}
				want := ubcoll.ErrAborted
				if c.Rank() == 4 {
					want = ubcoll.ErrLimit
				}
				if !errors.Is(err, want) {
					return fmt.Errorf("rank %d: want %w: %w", c.Rank(), want, err)
				}
				return nil
			})
		})
	}
}
