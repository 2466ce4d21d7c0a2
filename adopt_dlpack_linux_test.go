package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/hw/dlpack/dlpacktest"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

// needsDeleters skips a test that shows when deleters are called.
func needsDeleters(t *testing.T) {
	t.Helper()
	if !dlpacktest.Deletes {
		t.Skip("this build has no cgo")
	}
}

// deleted returns an error unless x has been deleted that many times.
func deleted(when string, x *dlpacktest.Tensor, times int) error {
	if n := x.Deleted(); dlpacktest.Deletes && n != times {
		return fmt.Errorf("%s: %d calls of the deleter, and %d are right", when, n, times)
	}
	return nil
}

// adopted makes a buffer of x, whose elements are float32.
func adopted(c *ubcoll.Comm, x *dlpacktest.Tensor) (*ubcoll.Buffer[byte], error) {
	b, ty, err := ubcoll.AdoptDLPack(c, x.Pointer())
	if err == nil && ty != dtype.Float32 {
		err = fmt.Errorf("elements of %v", ty)
	}
	return b, err
}

// floatsOf are x's elements.
func floatsOf(x *dlpacktest.Tensor) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&x.Bytes[0])), len(x.Bytes)/4)
}

// A collective reads and writes tensors, which are deleted by Free.
func TestAdoptDLPack(t *testing.T) {
	defer testkit.NoLeaks(t)()
	const n = 2
	in, out := make([]*dlpacktest.Tensor, n), make([]*dlpacktest.Tensor, n)
	for r := range in {
		in[r], out[r] = dlpacktest.New(t, 3, 4), dlpacktest.New(t, 1, 12, 1)
		out[r].Strides = dlpacktest.Ints(t, 7, 1, -7)
	}
	out[1].Deleter = 0
	require.NoError(t, ubcoll.Local(t.Context(), n, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm) error {
		x, y := in[c.Rank()], out[c.Rank()]
		for i := range floatsOf(x) {
			floatsOf(x)[i] = float32(i + c.Rank())
		}
		a, err1 := adopted(c, x)
		b, err2 := adopted(c, y)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if a.Len() != 48 || a.Device() != ubcoll.Host || &a.Slice()[0] != &x.Bytes[0] {
			return fmt.Errorf("%d bytes on %v, not the tensor's", a.Len(), a.Device())
		}
		err := coll.AllReduce(ctx, c, b.Vec().As(dtype.Float32), a.Vec().As(dtype.Float32), ubcoll.Sum)
		if err != nil {
			return err
		}
		for i, got := range floatsOf(y) {
			if got != float32(2*i+1) {
				return fmt.Errorf("element %d is %v", i, got)
			}
		}
		once := 1
		if c.Rank() == 1 {
			once = 0
		}
		return testkit.InOrder(
			func() error { return errors.Join(deleted("before Free", x, 0), deleted("before Free", y, 0)) },
			a.Free, b.Free,
			func() error { return errors.Join(deleted("after Free", x, 1), deleted("after Free", y, once)) },
			func() error {
				return errors.Join(testkit.Wants(a.Free(), ubcoll.ErrClosed), testkit.Wants(b.Free(), ubcoll.ErrClosed))
			})
	}))
	for r := range in {
		require.NoError(t, deleted("at the end", in[r], 1))
		require.NoError(t, deleted("at the end", out[r], 1-r))
	}
}

// A tensor that is refused stays the caller's. What package dlpack refuses, its tests have.
func TestAdoptDLPackRefuses(t *testing.T) {
	t.Setenv("UBCOLL_CUDA", "off")
	alone(t, func(ctx context.Context, c *ubcoll.Comm) error {
		has := dlpacktest.New(t, 12)
		b, err := adopted(c, has)
		require.NoError(t, err)
		closed, err := c.Dup(ctx)
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		for _, k := range []struct {
			name   string
			c      *ubcoll.Comm
			change func(x *dlpacktest.Tensor)
			want   error
			says   string
		}{
			{"ROCm", c, func(x *dlpacktest.Tensor) { x.DeviceType = 10 }, ubcoll.ErrArgument, "kDLROCM"},
			{"managed", c, func(x *dlpacktest.Tensor) { x.DeviceType = 13 }, ubcoll.ErrArgument, "kDLCUDAManaged"},
			{"complex", c, func(x *dlpacktest.Tensor) { x.Code, x.Bits = 5, 64 }, ubcoll.ErrArgument, "complex64"},
			{"strides", c, func(x *dlpacktest.Tensor) { x.Strides = dlpacktest.Ints(t, 2) }, ubcoll.ErrArgument, "strides [2]"},
			{"nothing", c, func(x *dlpacktest.Tensor) { x.Shape = dlpacktest.Ints(t, 0) }, ubcoll.ErrArgument, "no elements"},
			{"alignment", c, func(x *dlpacktest.Tensor) { x.ByteOffset = 3 }, ubcoll.ErrArgument, "not aligned"},
			{"no devices", c, func(x *dlpacktest.Tensor) { x.DeviceType = 2 }, ubcoll.ErrNotSupported, ""},
			{"no such device", c, func(x *dlpacktest.Tensor) { x.DeviceType, x.DeviceID = 2, -1 }, ubcoll.ErrArgument,
				"cuda:-1 is no device"},
			{"overlap", c, func(x *dlpacktest.Tensor) { x.Data = has.Data + 44 }, ubcoll.ErrInUse, "overlaps"},
			{"closed", closed, func(*dlpacktest.Tensor) {}, ubcoll.ErrClosed, ""},
		} {
			t.Run(k.name, func(t *testing.T) {
				x, before := dlpacktest.New(t, 12), c.Stats().Memory
				k.change(x)
				b, ty, err := ubcoll.AdoptDLPack(k.c, x.Pointer())
				require.ErrorIs(t, err, k.want)
				require.ErrorContains(t, err, k.says)
				var e *ubcoll.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, "adopt_dlpack", e.Op)
				require.Nil(t, b)
				require.Equal(t, dtype.Invalid, ty)
				require.Zero(t, x.Deleted())
				require.Equal(t, before, c.Stats().Memory)
			})
		}
		require.NoError(t, c.Err())
		require.NoError(t, deleted("another tensor's refusals", has, 0))
		return b.Free()
	})
}

// The close of the rank's last communicator deletes what nobody has freed.
func TestAdoptDLPackClose(t *testing.T) {
	needsDeleters(t)
	defer testkit.NoLeaks(t)()
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprintf("abort=%v", abort), func(t *testing.T) {
			ctx := t.Context()
			c, err := ubcoll.Open(ctx, bootstrap.Local(1)[0], ubcoll.Options{})
			require.NoError(t, err)
			d, err := c.Dup(ctx)
			require.NoError(t, err)
			all := []*dlpacktest.Tensor{dlpacktest.New(t, 12), dlpacktest.New(t, 5), dlpacktest.New(t, 1)}
			var last *ubcoll.Buffer[byte]
			for i, x := range all {
				last, err = adopted(d, x)
				require.NoError(t, err)
				if i == 0 {
					require.NoError(t, last.Free())
				}
			}
			if abort {
				d.Abort(errors.New("enough"))
			}
			require.NoError(t, d.Close())
			for i, x := range all {
				require.NoError(t, deleted("a communicator is open", x, max(0, 1-i)))
			}
			require.NoError(t, c.Close())
			for _, x := range all {
				require.NoError(t, deleted("closed", x, 1))
			}
			require.ErrorIs(t, last.Free(), ubcoll.ErrClosed)
			require.Nil(t, last.Slice())
			require.NoError(t, deleted("freed after that", all[2], 1))
		})
	}
}

// While a message, a registration or a graph has the memory, Free is refused and deletes nothing.
func TestAdoptDLPackInUse(t *testing.T) {
	alone(t, func(ctx context.Context, c *ubcoll.Comm) error {
		x := dlpacktest.New(t, 12)
		b, err := adopted(c, x)
		if err != nil {
			return err
		}
		inUse := func(by string) error {
			return errors.Join(testkit.WantsOf(0, by, b.Free(), ubcoll.ErrInUse), deleted(by, x, 0))
		}
		var e p2p.Exchange
		e.Recv(0, b.Vec())
		q, err := e.Start(ctx, c)
		if err != nil {
			return err
		}
		message := inUse("a message")
		err = testkit.InOrder(
			func() error { return p2p.Send(ctx, c, 0, ubcoll.Of(slices.Repeat([]byte{7}, 48))) },
			func() error { return q.Wait(ctx) })
		if err != nil || x.Bytes[47] != 7 {
			return fmt.Errorf("received %d: %w", x.Bytes[47], err)
		}
		r, err := b.Register(c)
		if err != nil {
			return err
		}
		registration := inUse("a registration")
		y := dlpacktest.New(t, 12)
		var inside *ubcoll.Buffer[byte]
		g, err := graph.Capture(ctx, c, func(c *ubcoll.Comm) (err error) {
			if inside, err = adopted(c, y); err != nil { // is no part of the graph
				return err
			}
			return coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Max)
		})
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
		captured := inUse("a graph")
		return errors.Join(message, registration, captured, g.Launch(ctx), deleted("launched", y, 0), inside.Free(),
			deleted("freed", y, 1), g.Close(), b.Free(), deleted("freed", x, 1))
	})
}

// Copies run while Free and Close come. A copy after the deleter would fault.
func TestAdoptDLPackCopies(t *testing.T) {
	needsDeleters(t)
	defer testkit.NoLeaks(t)()
	rounds := 50
	if testing.Short() {
		rounds = 10
	}
	for _, way := range []string{"Free", "Close"} {
		t.Run(way, func(t *testing.T) {
			refused := 0
			for i := range rounds {
				c, err := ubcoll.Open(t.Context(), bootstrap.Local(1)[0], ubcoll.Options{})
				require.NoError(t, err)
				x := dlpacktest.New(t, 1<<20)
				b, err := adopted(c, x)
				require.NoError(t, err)
				running, ended := make(chan bool), make(chan error, 1)
				go func() {
					dst := make([]byte, 4<<20)
					err := b.CopyTo(context.Background(), dst)
					close(running)
					for err == nil {
						time.Sleep(20 * time.Microsecond) // lets Free come
						err = b.CopyTo(context.Background(), dst)
					}
					ended <- err
				}()
				<-running
				time.Sleep(time.Duration(i%8) * 50 * time.Microsecond)
				if way == "Free" {
					for err = b.Free(); errors.Is(err, ubcoll.ErrInUse); err = b.Free() {
						refused++
						time.Sleep(10 * time.Microsecond)
						require.NoError(t, deleted("in use", x, 0))
					}
					require.NoError(t, err)
					require.ErrorIs(t, <-ended, ubcoll.ErrStale)
					require.True(t, testkit.Until(func() bool { return x.Deleted() == 1 }))
				}
				require.NoError(t, c.Close())
				require.NoError(t, deleted("closed", x, 1))
				if way == "Close" {
					require.ErrorIs(t, <-ended, ubcoll.ErrStale)
				}
			}
			t.Logf("%d times in use", refused)
		})
	}
}

// tensorOn makes n float32 of dev in memory of the driver's, and a tensor of them. end frees the memory.
func tensorOn(t *testing.T, dev ubcoll.Device, n int) (x *dlpacktest.Tensor, end func() error, err error) {
	p, err := cuda.Primary(dev)
	if err != nil {
		return nil, nil, err
	}
	at, err := p.Alloc(4 * n)
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	return dlpacktest.On(t, dev.Index(), uintptr(at), int64(n)),
		func() error { return errors.Join(p.Free(at), p.Close()) }, nil
}

func TestDeviceAdoptDLPack(t *testing.T) {
	kept := make([]*dlpacktest.Tensor, 2)
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		const n = 5000
		x, end, err := tensorOn(t, dev, n)
		if err != nil {
			return err
		}
		y, _, err := tensorOn(t, dev, n)
		if err != nil {
			return err
		}
		kept[c.Rank()] = y // its memory ends with the driver
		b, err1 := adopted(c, x)
		_, err2 := adopted(c, y)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if b.Device() != dev || b.Slice() != nil {
			return fmt.Errorf("on %v, not %v", b.Device(), dev)
		}
		one := slices.Repeat([]float32{1}, n)
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(&one[0])), 4*n)
		v := b.Vec().As(dtype.Float32)
		if err := testkit.InOrder(
			func() error { return b.CopyFrom(ctx, bytes) },
			func() error { return coll.AllReduce(ctx, c, v, v, ubcoll.Sum) },
			func() error { return b.CopyTo(ctx, bytes) }); err != nil {
			return err
		}
		if one[0] != 2 || one[n-1] != 2 {
			return fmt.Errorf("%v and %v, not 2", one[0], one[n-1])
		}
		var errs []error
		refuse := func(what string, want error, x *dlpacktest.Tensor) {
			_, err := adopted(c, x)
			errs = append(errs, testkit.WantsOf(c.Rank(), what, err, want), deleted(what, x, 0))
		}
		host := dlpacktest.New(t, 12)
		host.DeviceType, host.DeviceID = 2, int32(dev.Index())
		refuse("host memory as the device's", ubcoll.ErrArgument, host)
		theirs := dlpacktest.On(t, dev.Index(), x.Data, 12)
		theirs.DeviceType = 1
		refuse("the device's as host memory", ubcoll.ErrArgument, theirs)
		other := dlpacktest.On(t, dev.Index()+1, x.Data, 12)
		refuse("another device", ubcoll.ErrArgument, other)
		refuse("overlap", ubcoll.ErrInUse, dlpacktest.On(t, dev.Index(), x.Data+16, 4))
		errs = append(errs, deleted("before Free", x, 0), coll.Barrier(ctx, c), b.Free(), deleted("after Free", x, 1), end(),
			testkit.WantsOf(c.Rank(), "again", b.Free(), ubcoll.ErrClosed), deleted("before Close", y, 0))
		return errors.Join(errs...)
	})
	for _, x := range kept {
		if x != nil {
			require.NoError(t, deleted("closed", x, 1))
		}
	}
}

// Free stops waiting for what is queued on the device; then its end deletes the tensor.
func TestDeviceAdoptDLPackLate(t *testing.T) {
	needsDeleters(t)
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
		x, end, err := tensorOn(t, dev, 1000)
		if err != nil {
			return err
		}
		b, err1 := adopted(c, x)
		s, err2 := ubcoll.NewStream(dev)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		v, token := b.Vec().As(dtype.Float32), ubcoll.Of(make([]byte, 1))
		if c.Rank() == 1 {
			return testkit.InOrder(
				func() error { return testkit.ErrOf(p2p.Recv(ctx, c, 0, token)) },
				func() error { return coll.AllReduce(ctx, c.On(s), v, v, ubcoll.Max) },
				func() error { return s.Sync(ctx) }, s.Close, b.Free,
				func() error { return deleted("freed", x, 1) }, end)
		}
		view := (*inside.Comm)(c).View()
		view.SetCloseTimeout(50 * time.Millisecond)
		queued := coll.AllReduce(ctx, c.On(s), v, v, ubcoll.Max)
		late := b.Free()
		before := deleted("in use", x, 0)
		view.SetCloseTimeout(engine.CloseTimeout)
		return errors.Join(queued, testkit.WantsOf(0, "Free", late, ubcoll.ErrTimeout), before, testkit.InOrder(
			func() error { return p2p.Send(ctx, c, 1, token) },
			func() error { return s.Sync(ctx) },
			func() error {
				testkit.Until(func() bool { return x.Deleted() > 0 })
				return deleted("the queue is empty", x, 1)
			}, s.Close, end))
	})
}
