package endings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// KillHosts is Kill across hosts, with everything that crosses them in turn. The test kills a rank or a host, or cuts a
// link, reads the files that survivors write, and says when it has seen enough.
func KillHosts(ctx context.Context, c *ubcoll.Comm) error {
	n := c.Size()
	right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
	// The ring's connections are there before anything ends.
	if _, err := p2p.SendRecv(ctx, c, left, ubcoll.Of(make([]int32, 1)), right, ubcoll.Of(make([]int32, 1))); err != nil {
		return err
	}
	b, err := ubcoll.Alloc[float32](c, ubcoll.Host, 300000)
	if err != nil {
		return err
	}
	o, err := openOneSided(ctx, c)
	if err != nil {
		return err
	}
	d, err := onDevice(ctx, c)
	if err != nil {
		return err
	}
	dir, err := ready(c)
	if err != nil {
		return err
	}
	few, some, many := ubcoll.Of(make([]float32, 3)), ubcoll.Of(make([]float32, 50000)), b.Vec()
	other, counts := ubcoll.Of(make([]float32, 50000)), slices.Repeat([]int{50000 / n}, n)
	for k := 0; err == nil; k++ {
		if d != nil && k%2 == 1 {
			switch k % 6 {
			case 1:
				err = d.collective(ctx, c, k/6)
			case 3:
				err = d.message(ctx, c, k/6, left, right)
			default:
				err = d.access(ctx, k/6, left, right)
			}
			continue
		}
		switch from := some.Slice(0, 50000/n*n); k % 15 {
		case 0:
			err = coll.AllReduce(ctx, c, many, many, ubcoll.Max)
		case 1:
			err = coll.Barrier(ctx, c)
		case 2:
			err = coll.AllReduce(ctx, c, few, few, ubcoll.Max)
		case 3:
			err = coll.Broadcast(ctx, c, some, k%c.Size())
		case 4:
			err = coll.AllReduce(ctx, c, some, some, ubcoll.Max)
		case 5:
			err = coll.AllToAll(ctx, c, other.Slice(0, from.Len()), from)
		case 6:
			err = coll.Reduce(ctx, c, other, some, ubcoll.Max, k%n)
		case 7:
			err = coll.AllToAllV(ctx, c, other.Slice(0, from.Len()), counts, from, counts)
		case 8:
			err = coll.Gather(ctx, c, other.Slice(0, 2*n), some.Slice(0, 2), k%n)
		case 9: // around the ring of ranks, which crosses hosts from any of them
			err = testkit.ErrOf(p2p.SendRecv(ctx, c, left, other, right, some))
		case 10:
			err = testkit.ErrOf(p2p.SendRecv(ctx, c, right, other.Slice(0, 3), left, few))
		case 11:
			err = o.window(ctx, right, left)
		case 12:
			err = o.atomics(ctx, right)
		case 13:
			err = o.channels(ctx)
		case 14:
			err = o.flushes(ctx, right)
		}
	}
	if werr := writeReport(c.Rank(), dir, err, time.Now()); werr != nil {
		return werr
	}
	if c.Err() == nil {
		err = conform.Fail(c, "the communicator is not broken after %v", err)
	}
	testkit.Until(func() bool { _, err := os.Stat(EnoughFile(dir)); return err == nil })
	return err
}

// device is what is done with device memory between hosts.
type device struct {
	many, other *ubcoll.Buffer[float32]
	stream      *ubcoll.Stream
	graph       *graph.Graph // of all-reduces, on the stream
	w           *ubcoll.Window
	left, right *p2p.Channel
}

// onDevice returns nil if the rank has no device.
func onDevice(ctx context.Context, c *ubcoll.Comm) (*device, error) {
	dev, err := c.GPU()
	if err != nil {
		return nil, nil
	}
	many, err1 := ubcoll.Alloc[float32](c, dev, 3<<19) // two parts
	other, err2 := ubcoll.Alloc[float32](c, dev, 3<<19)
	s, err3 := ubcoll.NewStream(dev)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	d := &device{many: many, other: other, stream: s}
	if d.w, err = c.RegisterWindow(ctx, other.Vec(), ubcoll.WindowDefault); err != nil {
		return nil, err
	}
	r, err := c.RegisterBuffer(other.Vec())
	if err != nil {
		return nil, err
	}
	if d.left, d.right, err = around(ctx, c, r); err != nil {
		return nil, err
	}
	d.graph, err = graph.Capture(ctx, c.On(s), func(v *ubcoll.Comm) error { return d.queue(ctx, v) })
	return d, err
}

// access puts, gets and signals around the ring of ranks.
func (d *device) access(ctx context.Context, k, left, right int) error {
	some, few := d.many.Vec().Slice(0, 300_000), d.many.Vec().Slice(0, 10)
	switch k % 4 {
	case 0:
		return testkit.InOrder(
			func() error { return d.w.Put(ctx, right, 4<<10, some) },
			func() error { return d.w.Signal(ctx, right) },
			func() error { return d.w.Wait(ctx, left) },
			func() error { return d.w.Get(ctx, left, some, 0) })
	case 1:
		w := d.w.On(d.stream)
		return testkit.InOrder(
			func() error { return w.Put(ctx, right, 0, few) },
			func() error { return w.Put(ctx, right, 1<<20, some) },
			func() error { return w.Flush(ctx) },
			func() error { return w.Signal(ctx, right) },
			func() error { return w.Wait(ctx, left) },
			func() error { return w.Get(ctx, right, some, 1000) },
			func() error { return d.stream.Sync(ctx) })
	case 2:
		return testkit.InOrder(
			func() error { return d.right.On(d.stream).PutWithSignal(ctx, 0, 0, 2<<20) },
			func() error { return d.right.On(d.stream).PutWithSignal(ctx, 0, 100, 8) },
			func() error { return d.left.On(d.stream).Wait(ctx) },
			func() error { return d.left.On(d.stream).Wait(ctx) },
			func() error { return d.stream.Sync(ctx) })
	}
	return testkit.InOrder(
		func() error { return d.right.Get(ctx, 0, 1<<20, 1<<20) },
		func() error { return d.right.Put(ctx, 1<<20, 0, 100) },
		func() error { return d.right.Signal(ctx) },
		func() error { return d.left.Wait(ctx) },
		func() error { return d.right.Flush(ctx) })
}

// queue calls all-reduces of several sizes.
func (d *device) queue(ctx context.Context, v *ubcoll.Comm) error {
	for _, n := range []int{10, 1 << 20, 1000, 30_000, 1, 100_000} {
		if err := coll.AllReduce(ctx, v, d.many.Vec().Slice(0, n), d.many.Vec().Slice(0, n), ubcoll.Max); err != nil {
			return err
		}
	}
	return nil
}

func (d *device) collective(ctx context.Context, c *ubcoll.Comm, k int) error {
	n := c.Size()
	switch few := d.many.Vec().Slice(0, 4*n); k % 7 {
	case 0:
		return coll.AllReduce(ctx, c, d.many.Vec(), d.many.Vec(), ubcoll.Max)
	case 1:
		return coll.AllReduce(ctx, c, few, few, ubcoll.Max)
	case 2:
		return coll.AllGather(ctx, c, d.other.Vec().Slice(0, n*100_000), d.many.Vec().Slice(0, 100_000))
	case 3:
		return coll.Broadcast(ctx, c, d.other.Vec(), k%n)
	case 4:
		return testkit.InOrder(
			func() error { return d.queue(ctx, c.On(d.stream)) },
			func() error { return d.queue(ctx, c.On(d.stream)) },
			func() error { return d.stream.Sync(ctx) })
	case 5:
		return testkit.InOrder(
			func() error { return d.graph.Launch(ctx) },
			func() error { return d.graph.Launch(ctx) },
			func() error { return d.stream.Sync(ctx) })
	default:
		return coll.AllToAll(ctx, c, d.other.Vec().Slice(0, n*1000), d.many.Vec().Slice(0, n*1000))
	}
}

// message sends messages around the ring of ranks.
func (d *device) message(ctx context.Context, c *ubcoll.Comm, k, left, right int) error {
	around := func(v *ubcoll.Comm, n int) error {
		return testkit.ErrOf(p2p.SendRecv(ctx, v, left, d.other.Vec().Slice(0, n), right, d.many.Vec().Slice(0, n)))
	}
	switch k % 5 {
	case 0:
		return around(c, 1<<20)
	case 1:
		return around(c, 10)
	case 2:
		return testkit.InOrder(
			func() error { return around(c.On(d.stream), 30_000) },
			func() error { return around(c.On(d.stream), 1<<20) },
			func() error { return around(c.On(d.stream), 1) },
			func() error { return d.stream.Sync(ctx) })
	case 3:
		return testkit.InOrder(
			func() error {
				return ubcoll.Group(ctx, c.On(d.stream), func(g *ubcoll.Comm) error {
					return errors.Join(coll.AllReduce(ctx, g, d.many.Vec().Slice(0, 5), d.many.Vec().Slice(0, 5), ubcoll.Max),
						around(g, 300_000), around(g, 7))
				})
			},
			func() error { return d.stream.Sync(ctx) })
	}
	var x p2p.Exchange
	for i, n := range []int{3, 200_000, 5000} {
		x.Send(right, d.many.Vec().Slice(i*300_000, i*300_000+n))
		x.Recv(left, d.other.Vec().Slice(i*300_000, i*300_000+n))
	}
	r, err := x.Start(ctx, c)
	if err != nil {
		return err
	}
	return r.Wait(ctx)
}

// oneSided is what ranks do to each other's memory around the ring.
type oneSided struct {
	w           *ubcoll.Window
	left, right *p2p.Channel
	large       ubcoll.Vec
}

const oneSidedBytes = 4 << 20

func openOneSided(ctx context.Context, c *ubcoll.Comm) (o *oneSided, err error) {
	g, err := conform.NewRegion(c, oneSidedBytes)
	if err != nil {
		return nil, err
	}
	o = &oneSided{large: ubcoll.Of(make([]byte, oneSidedBytes/4))}
	if o.w, err = c.RegisterWindow(ctx, g.Buf.Vec(), ubcoll.WindowAtomic); err != nil {
		return nil, err
	}
	o.left, o.right, err = around(ctx, c, g.Reg)
	return o, err
}

// around connects a rank with those beside it in the ring.
func around(ctx context.Context, c *ubcoll.Comm, r *ubcoll.Registration) (toLeft, toRight *p2p.Channel, err error) {
	right, left := conform.Ring(c)
	connect := []func() error{
		func() (err error) { toRight, err = p2p.Connect(ctx, c, right, r); return err },
		func() (err error) { toLeft, err = p2p.Connect(ctx, c, left, r); return err },
	}
	if c.Rank() == c.Size()-1 { // else each waits for the next one
		slices.Reverse(connect)
	}
	err = testkit.InOrder(connect...)
	return toLeft, toRight, err
}

// window puts and gets, and signals around the ring.
func (o *oneSided) window(ctx context.Context, right, left int) error {
	return testkit.InOrder(
		func() error { return o.w.Put(ctx, right, oneSidedBytes/2, o.large) },
		func() error { return o.w.Signal(ctx, right) },
		func() error { return o.w.Wait(ctx, left) },
		func() error { return o.w.Get(ctx, left, o.large, oneSidedBytes/2) })
}

// atomics only wait for answers.
func (o *oneSided) atomics(ctx context.Context, right int) error {
	for k := range uint64(50) {
		if _, err := o.w.FetchAdd(ctx, right, 0, k); err != nil {
			return err
		}
		if _, err := o.w.CompareAndSwap(ctx, right, 8, k, k+1); err != nil {
			return err
		}
	}
	return nil
}

// channels puts and gets to both sides.
func (o *oneSided) channels(ctx context.Context) error {
	const half, n = oneSidedBytes / 2, 100_000
	return testkit.InOrder(
		func() error { return o.right.PutWithSignal(ctx, half, 0, n) },
		func() error { return o.left.Wait(ctx) },
		func() error { return o.left.Get(ctx, half+n, 0, n) },
		func() error { return o.left.Signal(ctx) },
		func() error { return o.right.Wait(ctx) })
}

// flushes puts and accumulates in many calls, and waits until all has landed.
func (o *oneSided) flushes(ctx context.Context, right int) error {
	for k := range 200 {
		if err := o.w.Put(ctx, right, 64*k, o.large.Slice(0, 50)); err != nil {
			return err
		}
	}
	return testkit.InOrder(
		func() error { return o.w.Accumulate(ctx, right, 1<<20, o.large.Slice(0, 100_000), ubcoll.Max) },
		func() error { return o.w.Flush(ctx) })
}

// CloseStopped makes rank 0 close its Comm after the test has stopped rank 1, on another host. Close ends all the same,
// and says which rank has not taken what it sent.
func CloseStopped(_ context.Context, c *ubcoll.Comm) error {
	dir, err := ready(c)
	if err != nil {
		return err
	}
	if c.Rank() != 0 {
		testkit.Until(func() bool { _, err := os.Stat(reportFile(dir, 0)); return err == nil })
		return nil
	}
	if !testkit.Until(func() bool { _, err := os.Stat(EnoughFile(dir)); return err == nil }) {
		return conform.Fail(c, "the test does not stop rank 1")
	}
	err = c.Close()
	return errors.Join(writeReport(c.Rank(), dir, err, time.Now()), testkit.WantsOf(0, "close", err, ubcoll.ErrTimeout))
}

// Stopped reduces 64 MiB until the test has seen enough. The test meanwhile stops a host's processes for
// CONFORM_STOPPED seconds (6).
func Stopped(ctx context.Context, c *ubcoll.Comm) error {
	dir, err := ready(c)
	if err != nil {
		return err
	}
	b, err := ubcoll.Alloc[int32](c, ubcoll.Host, 16<<20)
	if err != nil {
		return err
	}
	reg, err := b.Register(c)
	if err != nil {
		return err
	}
	seconds, err := conform.Number("CONFORM_STOPPED", 6)
	if err != nil {
		return err
	}
	limit := time.Duration(seconds)*time.Second + 4*testkit.Limit
	begin := time.Now()
	x := b.Slice()
	for k, enough := int32(0), int32(0); enough == 0; k++ {
		if time.Since(begin) > limit {
			return conform.Fail(c, "the test has not seen enough within %v", limit)
		}
		for i := range x {
			x[i] = k
		}
		if _, err := os.Stat(EnoughFile(dir)); err == nil && c.Rank() == 0 {
			x[0]++
		}
		if err := coll.AllReduce(ctx, c, b.Vec(), b.Vec(), ubcoll.Sum); err != nil {
			return err
		}
		want := k * int32(c.Size())
		enough = x[0] - want
		for i := 1; i < len(x); i++ {
			if x[i] != want {
				return conform.Fail(c, "round %d: element %d is %d, not %d", k, i, x[i], want)
			}
		}
		if c.Rank() == 0 {
			if err := write(RoundsFile(dir), fmt.Sprint(k)); err != nil {
				return err
			}
		}
	}
	return errors.Join(reg.Close(), b.Free())
}
