// Package devices has the suite for the ranks' devices.
package devices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/verify"
	"github.com/ubcoll/ubcoll/p2p"
)

// Device does collectives and messages on the ranks' devices with random arguments: blocking, on a stream and as
// graphs, on buffers that come and go. It checks every element. If ranks have no devices, it says so and does nothing,
// unless UBCOLL_REQUIRE has cuda.
func Device(ctx context.Context, c *ubcoll.Comm) error {
	dev, err := c.GPU()
	if err != nil {
		if env.Requires("cuda") {
			return err
		}
		if c.Rank() == 0 {
			fmt.Fprintf(os.Stderr, "device: skipped: %v\n", err)
		}
		return nil
	}
	s, err := ubcoll.NewStream(dev)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(conform.Seed(), 7))
	for i := range 10 {
		d := onDevice{ctx: ctx, c: c, dev: dev, s: s, how: i % 3, inPlace: r.IntN(2) == 0,
			op:   ubcoll.Sum,
			data: verify.Data{Type: dtype.Type(1 + r.IntN(int(dtype.Bool))), Op: cpu.Sum, Ranks: c.Size(), Seed: r.Uint64()}}
		if d.data.Type == dtype.Bool {
			d.op, d.data.Op = ubcoll.Max, cpu.Max
		}
		d.n = r.IntN([]int{10, 3000, 300000, 1500000}[i%4] / d.data.Type.Size())
		if err := testkit.InOrder(
			d.allReduce,
			d.allGather,
			func() error { return d.broadcast(r.IntN(c.Size())) },
			d.sendRecv); err != nil {
			return conform.Fail(c, "round %d, %d of %v, in place %v, way %d: %w", i, d.n, d.data.Type, d.inPlace, d.how, err)
		}
	}
	if err := windowDevice(ctx, c, dev, s); err != nil {
		return err
	}
	return s.Close()
}

// windowDevice puts around a ring through a window, by kernels and by copy engines.
func windowDevice(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device, s *ubcoll.Stream) error {
	const most = 32<<20 + 100
	b, err := ubcoll.Alloc[byte](c, dev, 2*most)
	if err != nil {
		return err
	}
	w, err := c.RegisterWindow(ctx, b.Vec(), ubcoll.WindowCollSymmetric)
	if err != nil {
		return err
	}
	next, last := conform.Ring(c)
	got := make([]byte, 2*most)
	for i, n := range []int{1, 5000, 700_000, most} {
		if err := errors.Join(b.CopyFrom(ctx, conform.Pattern(c.Rank(), i, n)), coll.Barrier(ctx, c)); err != nil {
			return err
		}
		q := w.On(s)
		if i%2 == 0 {
			q = w
		}
		if err := testkit.InOrder(
			func() error { return q.Put(ctx, next, most, b.Vec().Slice(0, n)) },
			func() error { return q.Signal(ctx, next) },
			func() error { return q.Wait(ctx, last) },
			func() error { return s.Sync(ctx) },
			func() error { return b.CopyTo(ctx, got) }); err != nil {
			return conform.Fail(c, "window, %d bytes: %w", n, err)
		}
		if !bytes.Equal(got[most:most+n], conform.Pattern(last, i, n)) {
			return conform.Fail(c, "window, %d bytes: wrong data", n)
		}
		if err := coll.Barrier(ctx, c); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), b.Free())
}

// onDevice is one set of arguments.
type onDevice struct {
	ctx     context.Context
	c       *ubcoll.Comm
	dev     ubcoll.Device
	s       *ubcoll.Stream
	how     int // 0: blocking, 1: on the stream, 2: as a graph on the stream
	inPlace bool
	n       int
	op      ubcoll.Op
	data    verify.Data
}

// run makes a source and a destination of this many elements and fills the source; in place, it fills the destination
// from element at on. It calls call, and then check on the destination.
func (o *onDevice) run(src, dst, at int, call func(c *ubcoll.Comm, dst, src ubcoll.Vec) error,
	check func(p unsafe.Pointer) (int, verify.Mismatch)) error {
	size := o.data.Type.Size()
	a, err1 := ubcoll.Alloc[byte](o.c, o.dev, src*size)
	b, err2 := ubcoll.Alloc[byte](o.c, o.dev, dst*size)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	from, to := a.Vec().As(o.data.Type), b.Vec().As(o.data.Type)
	host := make([]byte, max(src, dst)*size+8) // so that there is a first byte
	o.data.Fill(unsafe.Pointer(&host[0]), src, o.c.Rank())
	in := func() error { return a.CopyFrom(o.ctx, host[:src*size]) }
	if o.inPlace {
		from = to.Slice(at, at+src)
		placed := make([]byte, dst*size)
		copy(placed[at*size:], host[:src*size])
		in = func() error { return b.CopyFrom(o.ctx, placed) }
	}
	if err := in(); err != nil {
		return err
	}
	if err := o.do(func(c *ubcoll.Comm) error { return call(c, to, from) }); err != nil {
		return err
	}
	if err := b.CopyTo(o.ctx, host[:dst*size]); err != nil {
		return err
	}
	if wrong, m := check(unsafe.Pointer(&host[0])); wrong > 0 {
		return fmt.Errorf("%d wrong, %v (%s)", wrong, m, o.c.LastOp().String())
	}
	return errors.Join(a.Free(), b.Free())
}

func (o *onDevice) do(call func(c *ubcoll.Comm) error) error {
	switch o.how {
	case 0:
		return call(o.c)
	case 1:
		return testkit.InOrder(func() error { return call(o.c.On(o.s)) }, func() error { return o.s.Sync(o.ctx) })
	}
	g, err := graph.Capture(o.ctx, o.c.On(o.s), call)
	if err != nil {
		return err
	}
	return errors.Join(testkit.InOrder(
		func() error { return g.Launch(o.ctx) },
		func() error { return o.s.Sync(o.ctx) }), g.Close())
}

func (o *onDevice) allReduce() error {
	return o.run(o.n, o.n, 0, func(c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.AllReduce(o.ctx, c, dst, src, o.op)
	}, func(p unsafe.Pointer) (int, verify.Mismatch) { return o.data.Check(p, 0, o.n) })
}

func (o *onDevice) allGather() error {
	size := o.data.Type.Size()
	return o.run(o.n, o.n*o.c.Size(), o.n*o.c.Rank(), func(c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		return coll.AllGather(o.ctx, c, dst, src)
	}, func(p unsafe.Pointer) (wrong int, m verify.Mismatch) {
		for r := 0; r < o.c.Size() && wrong == 0; r++ {
			wrong, m = o.data.CheckInput(unsafe.Add(p, r*o.n*size), 0, o.n, r)
		}
		return wrong, m
	})
}

func (o *onDevice) broadcast(root int) error {
	return o.run(o.n, o.n, 0, func(c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		if c.Rank() == root {
			dst = src
		}
		return coll.Broadcast(o.ctx, c, dst, root)
	}, func(p unsafe.Pointer) (int, verify.Mismatch) {
		if o.c.Rank() == root && !o.inPlace {
			return 0, verify.Mismatch{} // its buffer was not written
		}
		return o.data.CheckInput(p, 0, o.n, root)
	})
}

func (o *onDevice) sendRecv() error {
	o.inPlace = false
	n := o.c.Size()
	from := (o.c.Rank() + n - 1) % n
	return o.run(o.n, o.n, 0, func(c *ubcoll.Comm, dst, src ubcoll.Vec) error {
		_, err := p2p.SendRecv(o.ctx, c, from, dst, (c.Rank()+1)%n, src)
		return err
	}, func(p unsafe.Pointer) (int, verify.Mismatch) { return o.data.CheckInput(p, 0, o.n, from) })
}
