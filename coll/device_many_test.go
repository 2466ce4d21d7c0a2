package coll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

// TestDevicesMany is TestDevices with more ranks than the kernels' parameters have room for.
func TestDevicesMany(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("what is instrumented is the same with fewer ranks")
	}
	r := random{
		ranks:  []int{9, 16},
		trials: 2,
		most:   200 << 10,
		name:   func(w mode) string { return fmt.Sprintf("%s/%v", w.algorithm, w) },
		modes: []mode{
			{"", register.Auto, false, false},
			{"", register.Explicit, true, true},
			{"two-shot", register.Off, false, true},
			{"push", register.Auto, false, false},
			{"ring", register.Explicit, true, true},
		},
		trial: func(ctx context.Context, p place) error {
			k := newTrial(p.same, p.c.Size(), 200<<10)
			k.shift = p.own.IntN(8)
			if err := k.run(ctx, p.c, p.a, p.b, p.sync); err != nil {
				return err
			}
			return newParts(p.same, p.c.Size(), 200<<10).run(ctx, p.c, p.a, p.b, p.own.IntN(8), p.sync)
		},
	}
	r.run(t)
}

// TestDevicesParts has still more ranks, and communicators of some of them, which run the kernels for few ranks. A
// small machine cannot close the devices of the maximum, 72 ranks, in time: TestCheck tries the kernels alone with 72.
func TestDevicesParts(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("what is instrumented is the same with fewer ranks")
	}
	const ranks = 24
	t.Setenv("UBCOLL_EMULATE_SMS", "132") // enough multiprocessors for the messages
	gputest.Run(t, ranks, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		me := float32(c.Rank() + 1)
		one, err := gputest.Floats(ctx, c, dev, 100, me)
		if err != nil {
			return err
		}
		all, err := gputest.Floats(ctx, c, dev, 4*ranks, -1)
		if err != nil {
			return err
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
		if err := coll.AllGather(ctx, c, all.Vec(), one.Vec().Slice(0, 4)); err != nil {
			return err
		}
		got := make([]float32, 4*ranks)
		if err := all.CopyTo(ctx, got); err != nil {
			return err
		}
		for i, x := range got {
			if x != float32(i/4+1) {
				return fmt.Errorf("rank %d: element %d of the all-gather is %v", c.Rank(), i, x)
			}
		}
		// The emulated device has no room for the blocks of more messages.
		if err := exchangeWith(ctx, c, 1, one, all); err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, c, one.Vec(), one.Vec(), ubcoll.Sum); err != nil {
			return err
		}
		if err := gputest.All(ctx, c, one, ranks*(ranks+1)/2); err != nil {
			return err
		}
		part, err := c.Split(ctx, c.Rank()%4, 0)
		if err != nil {
			return err
		}
		if err := coll.AllReduce(ctx, part, one.Vec(), one.Vec(), ubcoll.Max); err != nil {
			return err
		}
		return errors.Join(gputest.All(ctx, c, one, ranks*(ranks+1)/2), part.Close())
	})
}

// TestDeviceMessagesMany sends more messages at once than one kernel has lanes for.
func TestDeviceMessagesMany(t *testing.T) {
	testkit.Long(t)
	if race.Enabled {
		t.Skip("what is instrumented is the same with fewer ranks")
	}
	t.Setenv("UBCOLL_EMULATE_SMS", "132")
	gputest.Run(t, 10, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		one, err := gputest.Floats(ctx, c, dev, 4, float32(c.Rank()+1))
		if err != nil {
			return err
		}
		all, err := gputest.Floats(ctx, c, dev, 4*c.Size(), -1)
		if err != nil {
			return err
		}
		for range 3 {
			if err := exchangeWith(ctx, c, c.Size()-1, one, all); err != nil {
				return err
			}
		}
		return nil
	})
}

// exchangeWith sends the 4 elements of one, the rank's number plus one, to each of the next n ranks, and receives as
// many from each of the last n, all at once, into all, ordered by rank.
func exchangeWith(ctx context.Context, c *ubcoll.Comm, n int, one, all *ubcoll.Buffer[float32]) error {
	var x p2p.Exchange
	ranks := c.Size()
	if err := all.CopyFrom(ctx, make([]float32, 4*ranks)); err != nil {
		return err
	}
	for d := 1; d <= n; d++ {
		to, from := (c.Rank()+d)%ranks, (c.Rank()-d+ranks)%ranks
		x.Send(to, one.Vec().Slice(0, 4))
		x.Recv(from, all.Vec().Slice(4*from, 4*(from+1)))
	}
	if err := x.Do(ctx, c); err != nil {
		return err
	}
	got := make([]float32, 4*ranks)
	if err := all.CopyTo(ctx, got); err != nil {
		return err
	}
	for i, x := range got {
		from, want := i/4, float32(0)
		if d := (c.Rank() - from + ranks) % ranks; d >= 1 && d <= n {
			want = float32(from + 1)
		}
		if x != want {
			return fmt.Errorf("rank %d: element %d, of rank %d's message, is %v, not %v", c.Rank(), i%4, from, x, want)
		}
	}
	return nil
}
