package coll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/register"
)

// TestDeviceOrder queues on two streams in turn, without a wait: each operation sees the results of the one before it.
// Buffers are freed while operations that use them are queued.
func TestDeviceOrder(t *testing.T) {
	for _, n := range testkit.Sample(2, []int{2, 4}) {
		for _, count := range testkit.Sample(2, []int{70000, 10}) {
			t.Run(fmt.Sprintf("ranks=%d/count=%d", n, count), func(t *testing.T) {
				gputest.Run(t, n, ubcoll.Options{Algorithm: "two-shot"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					a, err1 := gputest.Floats(ctx, c, dev, count, 1)
					other, err2 := gputest.Floats(ctx, c, dev, count, 1)
					s, err3 := ubcoll.NewStream(dev)
					u, err4 := ubcoll.NewStream(dev)
					if err := errors.Join(err1, err2, err3, err4); err != nil {
						return err
					}
					want := float32(1)
					for i := range 10 {
						view := c.On([]*ubcoll.Stream{s, u}[i%2])
						if i == 7 {
							view = c
						}
						if err := coll.AllReduce(ctx, view, a.Vec(), a.Vec(), ubcoll.Sum); err != nil {
							return err
						}
						want *= float32(n)
					}
					if err := coll.AllReduce(ctx, c.On(s), other.Vec(), other.Vec(), ubcoll.Sum); err != nil {
						return err
					}
					if err := errors.Join(other.Free(), s.Sync(ctx), u.Sync(ctx)); err != nil {
						return err
					}
					return testkit.InOrder(
						func() error { return gputest.All(ctx, c, a, want) },
						func() error { return coll.Barrier(ctx, c.On(u)) },
						func() error { return u.Sync(ctx) },
						s.Close,
						u.Close,
						func() error { return testkit.WantsOf(c.Rank(), "second close", u.Close(), ubcoll.ErrClosed) },
						func() error { return coll.Barrier(ctx, c) },
						a.Free)
				})
			})
		}
	}
}

// untilDirect reduces v in place until the peers of all ranks have imported it.
func untilDirect(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
	for start := time.Now(); ; {
		if err := coll.AllReduce(ctx, c, v, v, ubcoll.Max); err != nil {
			return err
		}
		o := c.LastOp()
		if o.Algorithm != "two-shot" {
			return fmt.Errorf("%v", o)
		}
		done := []int8{0}
		if o.Src.Direct && o.Dst.Direct {
			done[0] = 1
		} else if !strings.Contains(o.Src.Why, "has not imported it yet") || time.Since(start) > testkit.Limit {
			return fmt.Errorf("after %v: %v", time.Since(start), o.String())
		}
		if err := coll.AllReduce(ctx, c, ubcoll.Of(done), ubcoll.Of(done), ubcoll.Min); err != nil || done[0] == 1 {
			return err
		}
	}
}

// TestDeviceDirect shows that buffers become direct once the peers have imported them, and why they were not before.
func TestDeviceDirect(t *testing.T) {
	for _, n := range testkit.Sample(2, []int{3, 9}) { // with kernels for few ranks, and for many
		t.Run(fmt.Sprint(n, " ranks"), func(t *testing.T) {
			gputest.Run(t, n, ubcoll.Options{Algorithm: "two-shot"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
				a, err := gputest.Floats(ctx, c, dev, 1000, 1)
				if err != nil {
					return err
				}
				if err := untilDirect(ctx, c, a.Vec()); err != nil {
					return err
				}
				// Multiplied sources are sent, not read in place.
				if err := coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.PreMulSum(float64(c.Rank()))); err != nil {
					return err
				}
				if o := c.LastOp(); o.Src.Direct || !o.Dst.Direct {
					return fmt.Errorf("%v", o.String())
				}
				return errors.Join(gputest.All(ctx, c, a, float32(n*(n-1)/2)), a.Free())
			})
		})
	}
}

// TestDeviceBad passes invalid arguments on one rank or on all: all ranks return typed errors, and the next call works.
func TestDeviceBad(t *testing.T) {
	for _, k := range []struct {
		name        string
		call        func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error // of rank 1
		mine, other error
		text        string // of the others' error
	}{
		{"count", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllReduce(ctx, c, v.Slice(0, 99), v.Slice(0, 99), ubcoll.Sum)
		}, ubcoll.ErrMismatch, ubcoll.ErrMismatch, "rank 1 called all_reduce(count 99"},
		{"operation", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.Broadcast(ctx, c, v, 0)
		}, ubcoll.ErrMismatch, ubcoll.ErrMismatch, "rank 1 called broadcast"},
		{"zero Op", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllReduce(ctx, c, v, v, ubcoll.Op{})
		}, ubcoll.ErrArgument, ubcoll.ErrArgument, "rank 1 refused"},
		{"host and device", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllReduce(ctx, c, v, ubcoll.Of(make([]float32, v.Len())), ubcoll.Sum)
		}, ubcoll.ErrArgument, ubcoll.ErrArgument, "rank 1 refused"},
		{"freed", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			d, _ := c.GPU()
			b, err := ubcoll.Alloc[float32](c, d, v.Len())
			if err != nil {
				return err
			}
			return errors.Join(b.Free(), coll.AllReduce(ctx, c, v, b.Vec(), ubcoll.Sum))
		}, ubcoll.ErrStale, ubcoll.ErrStale, "rank 1 refused"},
		{"ended context", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return coll.AllReduce(ctx, c, v, v, ubcoll.Sum)
		}, context.Canceled, context.Canceled, "rank 1 refused"},
		{"vector", func(ctx context.Context, c *ubcoll.Comm, v ubcoll.Vec) error {
			return coll.AllGatherV(ctx, c, v, []int{0, v.Len(), 0}, v)
		}, ubcoll.ErrMismatch, ubcoll.ErrMismatch, "rank 1 called all_gather_v"},
	} {
		for _, queued := range testkit.Sample(2, []bool{true, false}) {
			for _, algorithm := range testkit.Sample(2, []ubcoll.Algorithm{"one-shot", "two-shot"}) {
				t.Run(fmt.Sprintf("%s/queued=%v/%s", k.name, queued, algorithm), func(t *testing.T) {
					gputest.Run(t, 3, ubcoll.Options{Algorithm: algorithm}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						a, err := gputest.Floats(ctx, c, dev, 100, 1)
						if err != nil {
							return err
						}
						view, sync, end, err := gputest.View(ctx, c, dev, queued)
						if err != nil {
							return err
						}
						defer end()
						if c.Rank() == 1 {
							err = k.call(ctx, view, a.Vec())
						} else {
							err = coll.AllReduce(ctx, view, a.Vec(), a.Vec(), ubcoll.Sum)
						}
						if queued {
							if err != nil {
								return fmt.Errorf("at the call: %w", err)
							}
							err = sync()
						}
						want := k.other
						if c.Rank() == 1 {
							want = k.mine
						}
						if err := testkit.WantsOf(c.Rank(), "error", err, want); err != nil {
							return err
						}
						var e *ubcoll.Error
						if c.Rank() != 1 && (!errors.As(err, &e) || e.Peer != 1 || e.Device != dev || !strings.Contains(err.Error(), k.text)) {
							return fmt.Errorf("error: %w", err)
						}
						if err := c.Err(); err != nil {
							return err
						}
						if err := a.CopyFrom(ctx, slices.Repeat([]float32{2}, 100)); err != nil {
							return err
						}
						if err := coll.Barrier(ctx, c); err != nil {
							return err
						}
						if err := coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum); err != nil {
							return fmt.Errorf("afterwards: %w", err)
						}
						return gputest.All(ctx, c, a, 6)
					})
				})
			}
		}
	}
}

// TestDeviceLocal causes errors that no peer hears of.
func TestDeviceLocal(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 100, 1)
		if err != nil {
			return err
		}
		h, err := ubcoll.NewStream(ubcoll.Host)
		if err != nil {
			return err
		}
		r, err := c.RegisterBuffer(a.Vec())
		if err != nil {
			return err
		}
		_, elsewhere := ubcoll.Alloc[int8](c, ubcoll.CUDA(1-dev.Index()), 1)
		_, nowhere := ubcoll.NewStream(ubcoll.CUDA(99))
		_, host := ubcoll.StreamFrom(ubcoll.Host, 0)
		x := []float32{1}
		return errors.Join(
			testkit.WantsOf(c.Rank(), "a device's memory on a host stream",
				coll.AllReduce(ctx, c.On(h), a.Vec(), a.Vec(), ubcoll.Sum), ubcoll.ErrArgument),
			testkit.WantsOf(c.Rank(), "another rank's device", elsewhere, ubcoll.ErrArgument),
			testkit.WantsOf(c.Rank(), "no device", nowhere, ubcoll.ErrArgument),
			testkit.WantsOf(c.Rank(), "a CUDA stream of the host", host, ubcoll.ErrArgument),
			testkit.WantsOf(c.Rank(), "free of what is registered", a.Free(), ubcoll.ErrInUse), testkit.InOrder(
				r.Close,
				a.Free,
				func() error {
					return testkit.WantsOf(c.Rank(), "copy of what is freed", a.CopyTo(ctx, x), ubcoll.ErrStale)
				},
				func() error {
					return testkit.WantsOf(c.Rank(), "too long a copy", a.CopyTo(ctx, make([]float32, 101)), ubcoll.ErrStale)
				}))
	})
}

// TestDeviceBroken causes failures that break the communicator on all ranks, long before Options.Timeout is over, and
// with the reason.
func TestDeviceBroken(t *testing.T) {
	for _, k := range []struct {
		name  string
		abort bool // rank 1 aborts instead of calling; else it calls after the others have given up
		want  error
	}{
		{"missing", false, ubcoll.ErrTimeout},
		{"abort", true, ubcoll.ErrAborted},
	} {
		for _, queued := range []bool{false, true} {
			for _, algorithm := range []ubcoll.Algorithm{"one-shot", "two-shot"} {
				if testkit.Daily() && !(k.abort && queued && algorithm == "one-shot") {
					continue
				}
				t.Run(fmt.Sprintf("%s/queued=%v/%s", k.name, queued, algorithm), func(t *testing.T) {
					gave := make(chan struct{}, 2) // has a value for each of the others that gave up
					gputest.Run(t, 3, ubcoll.Options{Algorithm: algorithm}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
						if c.Rank() != 1 {
							defer func() { gave <- struct{}{} }()
						}
						a, err := gputest.Floats(ctx, c, dev, 100, 1)
						if err != nil {
							return err
						}
						if err := coll.Barrier(ctx, c); err != nil { // all ranks have come
							return err
						}
						switch {
						case c.Rank() == 1 && k.abort:
							time.Sleep(50 * time.Millisecond)
							c.Abort(errors.New("enough"))
						case c.Rank() == 1:
							<-gave
							<-gave
						case !k.abort:
							(*inside.Comm)(c).View().SetTimeout(2 * time.Second) // long enough that both are waiting by then
						}
						start := time.Now()
						view, sync, end, err := gputest.View(ctx, c, dev, queued)
						if err != nil {
							return err
						}
						defer end()
						// A rank that comes late may find all that it needs for one operation.
						for i := 0; err == nil && i < 3; i++ {
							if err = coll.AllReduce(ctx, view, a.Vec(), a.Vec(), ubcoll.Sum); err == nil {
								err = sync()
							}
						}
						t.Logf("rank %d: after %v", c.Rank(), time.Since(start))
						if err := testkit.WantsOf(c.Rank(), "the call", err, k.want); err != nil {
							return err
						}
						var e *ubcoll.Error
						if errors.As(c.Err(), &e); e == nil || c.Rank() != 1 && e.Peer != 1 {
							return fmt.Errorf("rank %d: broken of %w", c.Rank(), c.Err())
						}
						return testkit.WantsOf(c.Rank(), "afterwards",
							coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum), k.want)
					})
				})
			}
		}
	}
}

// TestDeviceCancel ends the context of a call that waits.
func TestDeviceCancel(t *testing.T) {
	cancelled := make(chan struct{})
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 100, 1)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			defer close(cancelled)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			go func() {
				testkit.Until(func() bool { return ctx.Err() != nil || c.LastOp().Op == "all_reduce" }) // it is queued
				cancel()
			}()
			return testkit.WantsOf(c.Rank(), "a call whose context ends",
				coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum), context.Canceled)
		}
		<-cancelled
		for i := 0; err == nil && i < 3; i++ { // the first one may find all that it needs
			err = coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Sum)
		}
		return testkit.WantsOf(c.Rank(), "the other", err, ubcoll.ErrAborted)
	})
}

// TestDeviceFamily uses communicators that share memory beside each other, and after the first has closed.
func TestDeviceFamily(t *testing.T) {
	testkit.LongOrRace(t)
	gputest.Run(t, 4, ubcoll.Options{Algorithm: "two-shot"}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		half, err := c.Split(ctx, c.Rank()%2, -c.Rank())
		if err != nil {
			return err
		}
		twin, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		a, err := gputest.Floats(ctx, c, dev, 5000, 1)
		if err != nil {
			return err
		}
		if d, err := half.GPU(); d != dev || err != nil {
			return fmt.Errorf("%v, %w", d, err)
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		for range 3 {
			for _, c := range []*ubcoll.Comm{c, half, twin} {
				if err := coll.AllReduce(ctx, c.On(s), a.Vec(), a.Vec(), ubcoll.Max); err != nil {
					return err
				}
			}
		}
		if err := testkit.InOrder(
			func() error { return coll.AllReduce(ctx, half.On(s), a.Vec(), a.Vec(), ubcoll.Sum) },
			func() error { return s.Sync(ctx) },
			half.Close,
			func() error { return gputest.All(ctx, twin, a, 2) },
			func() error { return coll.AllReduce(ctx, twin, a.Vec(), a.Vec(), ubcoll.Sum) },
			func() error { return gputest.All(ctx, twin, a, 8) }); err != nil {
			return err
		}
		return errors.Join(s.Close(), twin.Close())
	})
}

// TestForeignCapture captures a stream of another library, and replays it after the program has closed everything.
func TestForeignCapture(t *testing.T) {
	o := ubcoll.Options{Algorithm: "two-shot", Register: register.Auto}
	gputest.Run(t, 2, o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err := gputest.Floats(ctx, c, dev, 70000, 1)
		if err != nil {
			return err
		}
		theirs, s, end, err := gputest.Foreign(dev)
		if err != nil {
			return err
		}
		defer end()
		if err := coll.AllReduce(ctx, c, a.Vec(), a.Vec(), ubcoll.Max); err != nil { // loads the kernel
			return err
		}
		if err := theirs.BeginCapture(); err != nil {
			return err
		}
		err = coll.AllReduce(ctx, c.On(s), a.Vec(), a.Vec(), ubcoll.Sum)
		g, err2 := theirs.EndCapture()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		defer g.Close()
		if err := testkit.WantsOf(c.Rank(), "free of what is captured", a.Free(), ubcoll.ErrInUse); err != nil {
			return err
		}
		for range 3 {
			if err := g.Launch(theirs); err != nil {
				return err
			}
		}
		return testkit.InOrder(
			theirs.Sync,
			func() error { return s.Sync(ctx) },
			func() error { return gputest.All(ctx, c, a, 8) })
	})
}

// TestNoDevice has a communicator whose ranks do not each have a device.
func TestNoDevice(t *testing.T) {
	err := ubcoll.Local(t.Context(), 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		_, why := c.GPU()
		_, alloc := ubcoll.Alloc[int8](c, ubcoll.CUDA(0), 1)
		x := []int32{1}
		return errors.Join(testkit.WantsOf(c.Rank(), "GPU", why, fault.ErrNotSupported),
			testkit.WantsOf(c.Rank(), "Alloc", alloc, fault.ErrNotSupported),
			coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum))
	})
	require.NoError(t, err)
}

// TestDeviceBrokenBehind breaks the communicator after an error that no Sync has returned: Sync returns both.
func TestDeviceBrokenBehind(t *testing.T) {
	synced, gave := make(chan struct{}), make(chan struct{})
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		a, err1 := gputest.Floats(ctx, c, dev, 100, 1)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2, coll.Barrier(ctx, c)); err != nil {
			return err
		}
		v := a.Vec().Slice(0, 100-c.Rank())
		if c.Rank() == 1 {
			err := testkit.InOrder(
				func() error { return coll.AllReduce(ctx, c.On(s), v, v, ubcoll.Sum) },
				func() error { return testkit.WantsOf(c.Rank(), "the first", s.Sync(ctx), ubcoll.ErrMismatch) })
			close(synced)
			<-gave
			return err
		}
		defer close(gave)
		err := coll.AllReduce(ctx, c.On(s), v, v, ubcoll.Sum)
		<-synced
		if err != nil {
			return err
		}
		(*inside.Comm)(c).View().SetTimeout(500 * time.Millisecond)
		if err := coll.AllReduce(ctx, c.On(s), v, v, ubcoll.Sum); err != nil { // rank 1 does not call it
			return err
		}
		err = s.Sync(ctx)
		return errors.Join(testkit.WantsOf(c.Rank(), "the first", err, ubcoll.ErrMismatch),
			testkit.WantsOf(c.Rank(), "what is behind it", err, ubcoll.ErrAborted),
			testkit.WantsOf(c.Rank(), "broken", c.Err(), ubcoll.ErrAborted))
	})
}
