package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
	"github.com/ubcoll/ubcoll/register"
)

const mib = 1 << 20

// unregistered are options under which no buffer is registered automatically, so all are staged.
var unregistered = ubcoll.Options{Register: register.Explicit, Algorithm: "two-shot"}

// taken checks that the library has taken at most that many MiB of this rank's device.
func taken(c *ubcoll.Comm, after string, most int64) error {
	if got := c.Stats().Memory.OwnBytes; got > most*mib {
		return fmt.Errorf("rank %d, after %s: %.1f MiB of device memory, and %d are to do", c.Rank(), after, float64(got)/mib, most)
	}
	return nil
}

// The first communicator takes at most 24 MiB of a device, whatever it does, and each one made from it takes 1 MiB.
func TestDeviceMemory(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Run(t, 2, unregistered, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 2*mib, float32(1+c.Rank()))
		if err != nil {
			return err
		}
		b, err := gputest.Floats(ctx, c, dev, 2*mib, 0)
		if err != nil {
			return err
		}
		errs := []error{taken(c, "Open", 10)}
		var all []*ubcoll.Comm
		for i := range 8 {
			make := c.Dup
			if i%2 == 1 {
				make = func(ctx context.Context) (*ubcoll.Comm, error) { return c.Split(ctx, 0, c.Size()-c.Rank()) }
			}
			d, err := make(ctx)
			if err != nil {
				return err
			}
			all = append(all, d)
			errs = append(errs, taken(c, fmt.Sprintf("%d more", i+1), int64(10+(i+2)/2*2)))
		}
		for _, d := range all {
			errs = append(errs, coll.AllReduce(ctx, d, b.Vec().Slice(0, 1000), a.Vec().Slice(0, 1000), ubcoll.Sum))
		}
		errs = append(errs, taken(c, "small operations", 18))
		for _, d := range all {
			errs = append(errs, d.Close())
		}
		errs = append(errs, coll.Barrier(ctx, c)) // no rank has any of them open any more
		d, err := ubcoll.Alloc[byte](c, dev, 1)
		if err != nil {
			return err
		}
		errs = append(errs, d.Free(), taken(c, "they were closed", 10)) // Free also gives back memory that waited for it
		for _, what := range []string{"a staged all-reduce", "another one"} {
			errs = append(errs, coll.AllReduce(ctx, c, b.Vec(), a.Vec(), ubcoll.Sum), gputest.All(ctx, c, b, 3), taken(c, what, 22))
		}
		if got := c.Stats().Memory.OwnBytes; got != 22*mib {
			errs = append(errs, fmt.Errorf("%d bytes: no staging memory was made", got))
		}
		for _, what := range []string{"a staged message", "another one"} {
			other := 1 - c.Rank()
			_, err := p2p.SendRecv(ctx, c, other, b.Vec(), other, a.Vec())
			errs = append(errs, err, gputest.All(ctx, c, b, float32(1+other)), taken(c, what, 24))
		}
		// On an emulated GPU under the race detector the broadcast may take seconds longer here than on its root: more than
		// a rank that closes grants the others' work.
		errs = append(errs, coll.Broadcast(ctx, c, b.Vec(), 0), coll.Barrier(ctx, c), taken(c, "a broadcast", 24), a.Free(),
			b.Free())
		return errors.Join(errs...)
	})
}

// Stats counts exactly the memory that the driver has given.
func TestDeviceMemoryOfDriver(t *testing.T) {
	emulated.Only(t)
	ctxs := []*cuda.Context{emulated.Primary(t, 0), emulated.Primary(t, 1)}
	before := []int{emulated.Used(t, ctxs[0]), emulated.Used(t, ctxs[1])}
	gputest.Run(t, 2, unregistered, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		own, used := c.Stats().Memory.OwnBytes, emulated.Used(t, ctxs[dev.Index()])
		if int64(used-before[dev.Index()]) != own {
			err = fmt.Errorf("the driver has given %d bytes more than %d, and Stats says %d", used, before[dev.Index()], own)
		}
		return errors.Join(coll.Barrier(ctx, c), err, d.Close())
	})
	require.Equal(t, before, []int{emulated.Used(t, ctxs[0]), emulated.Used(t, ctxs[1])})
}

// bulk makes two buffers of 4 MiB, which it registers if registered is set.
func bulk(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, registered bool) (src, dst *ubcoll.Buffer[float32],
	end func() error, err error) {
	src, err1 := gputest.Floats(ctx, c, dev, mib, float32(1+c.Rank()))
	dst, err2 := gputest.Floats(ctx, c, dev, mib, 0)
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, nil, err
	}
	var rs []*ubcoll.Registration
	for _, b := range []*ubcoll.Buffer[float32]{src, dst} {
		if registered {
			r, err := c.RegisterBuffer(b.Vec())
			if err != nil {
				return nil, nil, nil, err
			}
			rs = append(rs, r)
		}
	}
	return src, dst, func() error {
		var errs []error
		for _, r := range rs {
			errs = append(errs, r.Close())
		}
		return errors.Join(append(errs, src.Free(), dst.Free())...)
	}, nil
}

// threeEach sums what bulk has made on two ranks, and checks the result.
func threeEach(ctx context.Context, c *ubcoll.Comm, dst, src *ubcoll.Buffer[float32]) error {
	if err := coll.AllReduce(ctx, c, dst.Vec(), src.Vec(), ubcoll.Sum); err != nil {
		return err
	}
	return gputest.All(ctx, c, dst, 3)
}

// A rank whose own buffers are direct learns from its kernels that others need staging memory.
func TestStagingForOthers(t *testing.T) {
	gputest.Run(t, 2, unregistered, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		src, dst, end, err := bulk(ctx, c, dev, c.Rank() == 0)
		if err != nil {
			return err
		}
		before := c.Stats().Memory.OwnBytes
		for range 5 {
			if err := threeEach(ctx, c, dst, src); err != nil {
				return err
			}
		}
		if got := c.Stats().Memory.OwnBytes; got != before+12*mib {
			err = fmt.Errorf("rank %d: %d bytes were made, and 12 MiB are of use", c.Rank(), got-before)
		}
		return errors.Join(err, end())
	})
}

// Direct buffers need no staging memory.
func TestNoStagingForDirect(t *testing.T) {
	o := ubcoll.Options{Register: register.Explicit, Algorithm: "two-shot"}
	gputest.Run(t, 2, o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		src, dst, end, err := bulk(ctx, c, dev, true)
		if err != nil {
			return err
		}
		before := c.Stats().Memory.OwnBytes
		for direct := []int32{0}; direct[0] == 0; { // repeat until all peers have imported them
			if err := coll.AllReduce(ctx, c, dst.Vec().Slice(0, 1000), src.Vec().Slice(0, 1000), ubcoll.Sum); err != nil {
				return err
			}
			if o := c.LastOp(); o.Src.Direct && o.Dst.Direct {
				direct[0] = 1
			}
			if err := coll.AllReduce(ctx, c, ubcoll.Of(direct), ubcoll.Of(direct), ubcoll.Min); err != nil {
				return err
			}
		}
		if err := threeEach(ctx, c, dst, src); err != nil {
			return err
		}
		if got := c.Stats().Memory.OwnBytes; got != before {
			err = fmt.Errorf("%d bytes were made, for nothing", got-before)
		}
		return errors.Join(err, end())
	})
}

// If the device has no memory for more staging, operations use the areas' staging memory.
func TestNoMemoryForStaging(t *testing.T) {
	testkit.LongOrRace(t)
	emulated.Only(t)
	for _, call := range []string{"cuMemCreate", "cuMemMap", "cuMemExportToShareableHandle"} {
		t.Run(call, func(t *testing.T) {
			gputest.Run(t, 2, unregistered, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				src, dst, end, err := bulk(ctx, c, dev, false)
				if err != nil {
					return err
				}
				before := c.Stats().Memory.OwnBytes
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				if c.Rank() == 0 {
					t.Setenv("UBCOLL_EMULATE_FAIL", call) // fails on one of the two ranks
				}
				if err := coll.Barrier(ctx, c); err != nil {
					return err
				}
				for range 3 {
					if err := threeEach(ctx, c, dst, src); err != nil {
						return err
					}
				}
				made := []int64{c.Stats().Memory.OwnBytes - before}
				if err := coll.AllReduce(ctx, c, ubcoll.Of(made), ubcoll.Of(made), ubcoll.Sum); err != nil {
					return err
				}
				if made[0] != 12*mib {
					err = fmt.Errorf("both have %d bytes, and one of them was to fail", made[0])
				}
				return errors.Join(err, end())
			})
		})
	}
}

// A graph is captured with staging memory that the peers have already mapped.
func TestStagingInGraph(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Run(t, 2, ubcoll.Options{Algorithm: "push"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		src, dst, end, err := bulk(ctx, c, dev, false)
		if err != nil {
			return err
		}
		before := c.Stats().Memory.OwnBytes
		g, err := graph.Capture(ctx, c, func(v *ubcoll.Comm) error {
			return coll.AllReduce(ctx, v, dst.Vec(), src.Vec(), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		for range 3 {
			if err := testkit.InOrder(
				func() error { return g.Launch(ctx) },
				func() error { return gputest.All(ctx, c, dst, 3) }); err != nil {
				return err
			}
		}
		if got := c.Stats().Memory.OwnBytes; got != before+12*mib {
			err = fmt.Errorf("%d bytes were made", got-before)
		}
		return errors.Join(err, g.Close(), end())
	})
}

// If a peer closes while this rank makes staging memory for a call, nothing is left behind, and nobody waits.
func TestGoneWhileStagingIsMade(t *testing.T) {
	testkit.LongOrRace(t)
	emulated.Only(t)
	ctxs := []*cuda.Context{emulated.Primary(t, 0), emulated.Primary(t, 1)}
	for name, leave := range map[string]func(c *ubcoll.Comm) error{
		"abort": func(c *ubcoll.Comm) error { c.Abort(errors.New("on purpose")); return nil },
		"close": func(c *ubcoll.Comm) error { return c.Close() },
		"never": func(*ubcoll.Comm) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			before := []int{emulated.Used(t, ctxs[0]), emulated.Used(t, ctxs[1])}
			o := ubcoll.Options{Algorithm: "push"}
			gputest.Run(t, 2, o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				src, dst, _, err := bulk(ctx, c, dev, false)
				if err != nil {
					return err
				}
				d, err := c.Dup(ctx)
				if err != nil {
					return err
				}
				if c.Rank() == 1 {
					err := errors.Join(leave(d), coll.Barrier(ctx, c))
					if name != "close" {
						err = errors.Join(err, d.Close())
					}
					return err
				}
				limit, stop := context.WithTimeout(ctx, time.Second)
				defer stop()
				if err := coll.AllReduce(limit, d, dst.Vec(), src.Vec(), ubcoll.Sum); err == nil {
					return errors.New("an all-reduce without its peer has no error")
				}
				return errors.Join(coll.Barrier(ctx, c), d.Close())
			})
			require.Equal(t, before, []int{emulated.Used(t, ctxs[0]), emulated.Used(t, ctxs[1])})
		})
	}
}
