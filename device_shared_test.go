package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// TestSharedDevicesAreReported runs five ranks, on fewer devices if there are fewer. LastOp says how many ranks have this
// rank's device, and the log which ones, once for each device that ranks share.
func TestSharedDevicesAreReported(t *testing.T) {
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

// TestSharedMemoryOut runs more ranks on a device than its memory is enough for: all ranks learn which one found none.
func TestSharedMemoryOut(t *testing.T) {
	emulated.Only(t)
	const ranks = 6
	for _, mib := range []int{1, 24, 48} { // a rank takes 18
		t.Run(fmt.Sprintf("%d MiB", mib), func(t *testing.T) {
			t.Setenv("UBCOLL_EMULATE_MEMORY", strconv.Itoa(mib<<20))
			t.Setenv("UBCOLL_CUDA", "share")
			all, err := cuda.Devices()
			require.NoError(t, err)
			if len(all) > 1 {
				t.Skip("the ranks share several devices")
			}
			for _, policy := range []ubcoll.DevicePolicy{ubcoll.DevicesShare, ubcoll.DevicesRequired} {
				want := regexp.MustCompile(`rank (\d) could not use cuda:0, as number (\d) of the 6 ranks that share it: .*OUT_OF_MEMORY.*: limit reached$`)
				check := func(err error) error {
					if m := want.FindStringSubmatch(fmt.Sprint(err)); m == nil || !errors.Is(err, ubcoll.ErrLimit) || m[1][0] != m[2][0]-1 {
						return fmt.Errorf("%v: %w", policy, err)
					}
					return nil
				}
				opened := false
				err := ubcoll.Local(t.Context(), ranks, ubcoll.Options{Devices: policy}, func(ctx context.Context, c *ubcoll.Comm) error {
					if c.Rank() == 0 {
						opened = true
					}
					_, err := c.GPU()
					return check(err)
				})
				if policy == ubcoll.DevicesRequired {
					require.False(t, opened)
					err = check(err)
				}
				require.NoError(t, err)
			}
		})
	}
}

// TestSharedAtOnce makes ranks that share a device queue on new streams at the same moment, each two operations, so that
// one stream's would keep back another's if both had the same queue.
func TestSharedAtOnce(t *testing.T) {
	const ranks = 5
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	var arrived atomic.Int32
	gputest.Run(t, ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		b, err := gputest.Floats(ctx, c, dev, 10, 0)
		if err != nil {
			return err
		}
		for i := range rounds {
			s, err := ubcoll.NewStream(dev)
			if err != nil {
				return err
			}
			for arrived.Add(1); arrived.Load() < int32(ranks*(i+1)) && ctx.Err() == nil; {
				runtime.Gosched()
			}
			if err := errors.Join(allReduce(ctx, c.On(s), b.Vec()), allReduce(ctx, c.On(s), b.Vec()), s.Sync(ctx),
				s.Close()); err != nil {
				return err
			}
		}
		return b.Free()
	})
}

// TestSharedPace makes rank 0 queue more than a stream of a device that ranks share takes at a time: it waits until its
// peers have done some of it.
func TestSharedPace(t *testing.T) {
	const ranks, most, all = 5, 256, 600
	var queued atomic.Int32 // by rank 0
	gputest.Run(t, ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		if gputest.Sharers(t, ranks) < 2 {
			return nil
		}
		b, err1 := gputest.Floats(ctx, c, dev, 10, 0)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if c.Rank() != 0 {
			for queued.Load() < most && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(20 * time.Millisecond) // time to do what it must not do
			if n := queued.Load(); n > most {
				return fmt.Errorf("rank 0 has queued %d operations", n)
			}
		}
		for range all {
			if err := allReduce(ctx, c.On(s), b.Vec()); err != nil {
				return err
			}
			if c.Rank() == 0 {
				queued.Add(1)
			}
		}
		return errors.Join(s.Sync(ctx), s.Close(), b.Free())
	})
}
