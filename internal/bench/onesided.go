package bench

import (
	"context"
	"errors"
	"slices"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/p2p"
)

// oneSided are the operations by which one rank reads or writes another's memory. They run in pairs of ranks (0 and 1,
// 2 and 3), both ways at once. Each has several variants, which the table names in place of a reduction. Each rank has
// one region of memory: a source, a destination and, for packets, two areas that calls use in turn. There are two
// because a rank may begin the next call before its peer has read the packets of this one.
var oneSided = []operation{
	{name: "channel", outOfPlace: true, device: true, trips: 1, bus: once, shape: pairs, open: openChannel, parts: 6,
		variants: []string{"put", "get", "packet"}},
	{name: "window", outOfPlace: true, device: true, trips: 1, bus: once, shape: pairs, open: openWindow, parts: 2,
		variants: []string{"put", "get"}},
}

// ends holds what a rank needs for the one-sided operations of a run.
type ends struct {
	mem  *memory // the region; if it is on a device, the host has a copy of the first two parts
	max  int     // bytes of a part
	run  func(ctx context.Context, variant string, n int) error
	done func() error

	stream *ubcoll.Stream // calls on a device are queued here
	cu     *cuda.Stream   // the same stream, for captures
}

func (e *ends) part(i, n int) []byte { return e.mem.bytes[i*e.max:][:n] }

// openEnds allocates the region and opens op's channel or window on it. Collective.
func (r *runner) openEnds(ctx context.Context) (*ends, error) {
	const line = 64
	e := &ends{max: (r.cfg.MaxBytes + line) &^ (line - 1), stream: r.stream, cu: r.cu, mem: &memory{}}
	start := time.Now()
	var err error
	if e.mem.buf, err = ubcoll.Alloc[uint64](r.c, r.dev, r.op.parts*e.max/8); err != nil {
		return nil, err
	}
	allocated := time.Since(start)
	e.mem.words = e.mem.buf.Slice()
	if e.mem.onDevice() {
		e.mem.words = make([]uint64, 2*e.max/8)
	}
	e.mem.vec = e.mem.buf.Vec().As(byteType)
	e.mem.bytes = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(e.mem.words))), 8*len(e.mem.words))
	start = time.Now()
	if err := r.op.open(ctx, r.c, e); err != nil {
		return nil, errors.Join(err, e.mem.close())
	}
	r.rep.Setup = &Setup{Bytes: r.op.parts * e.max, Alloc: float64(allocated) / 1e3,
		Register: float64(time.Since(start)) / 1e3}
	return e, nil
}

func openChannel(ctx context.Context, c *ubcoll.Comm, e *ends) error {
	reg, err := c.RegisterBuffer(e.mem.vec)
	if err != nil {
		return err
	}
	peer := c.Rank() ^ 1
	if peer >= c.Size() {
		e.run, e.done = func(context.Context, string, int) error { return nil }, reg.Close
		return nil
	}
	ch, err := p2p.Connect(ctx, c, peer, reg)
	if err != nil {
		return errors.Join(err, reg.Close())
	}
	e.done = func() error { return errors.Join(ch.Close(), reg.Close()) }
	turn := 0
	if e.mem.onDevice() {
		e.run = e.queued(ch.On(e.stream))
		return nil
	}
	e.run = func(ctx context.Context, variant string, n int) error {
		switch variant {
		case "put":
			if err := ch.PutWithSignal(ctx, e.max, 0, n); err != nil {
				return err
			}
			return ch.Wait(ctx)
		case "get":
			if err := ch.Get(ctx, e.max, 0, n); err != nil {
				return err
			}
			// The peer rewrites its source after the call, so it has to know that this rank has read it.
			if err := ch.Signal(ctx); err != nil {
				return err
			}
			return ch.Wait(ctx)
		}
		turn ^= 1
		at := (2 + 2*turn) * e.max
		if err := ch.PutPackets(ctx, at, 0, n, p2p.Packet16); err != nil {
			return err
		}
		return ch.GetPackets(ctx, e.max, at, n, p2p.Packet16)
	}
	return nil
}

// queued returns a function that queues one call on the device, as one kernel. As in MSCCL++'s tutorial, the ranks
// meet, copy, and after a put meet again; packets need no meeting. After a get the ranks meet again only outside of
// graphs: there a check may rewrite data that the peer still reads. In a graph the data stay the same until the ranks
// have met in another way.
func (e *ends) queued(ch *p2p.Channel) func(ctx context.Context, variant string, n int) error {
	turn := 0
	return func(ctx context.Context, variant string, n int) error {
		return ch.Batch(ctx, func(b *p2p.Channel) error {
			if variant == "packet" {
				turn ^= 1
				at := (2 + 2*turn) * e.max
				return errors.Join(b.PutPackets(ctx, at, 0, n, p2p.Packet16), b.GetPackets(ctx, e.max, at, n, p2p.Packet16))
			}
			err := errors.Join(b.RelaxedSignal(ctx), b.Wait(ctx))
			if variant == "put" {
				err = errors.Join(err, b.Put(ctx, e.max, 0, n))
			} else {
				err = errors.Join(err, b.Get(ctx, e.max, 0, n))
			}
			if variant == "get" && e.cu != nil && e.cu.OwnCapture() {
				return err
			}
			return errors.Join(err, b.Signal(ctx), b.Wait(ctx))
		})
	}
}

func openWindow(ctx context.Context, c *ubcoll.Comm, e *ends) error {
	w, err := c.RegisterWindow(ctx, e.mem.vec, ubcoll.WindowCollSymmetric)
	if err != nil {
		return err
	}
	e.done = w.Close
	if e.mem.onDevice() {
		w = w.On(e.stream)
	}
	peer := c.Rank() ^ 1
	e.run = func(ctx context.Context, variant string, n int) error {
		if peer >= c.Size() {
			return nil
		}
		var err error
		if variant == "put" {
			err = w.Put(ctx, peer, e.max, e.mem.vec.Slice(0, n))
		} else {
			err = w.Get(ctx, peer, e.mem.vec.Slice(e.max, e.max+n), 0)
		}
		if err != nil {
			return err
		}
		if err := w.Signal(ctx, peer); err != nil {
			return err
		}
		return w.Wait(ctx, peer)
	}
	return nil
}

// oneSided measures the variants that cfg names, each on every size.
func (r *runner) oneSided(ctx context.Context) (err error) {
	e, err := r.openEnds(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.done(), e.mem.close()) }()
	r.text.columns()
	for cycle := 0; r.cfg.Cycles == 0 || cycle < r.cfg.Cycles; cycle++ {
		for _, variant := range r.op.variants {
			if r.cfg.Variants != nil && !slices.Contains(r.cfg.Variants, variant) {
				continue
			}
			for _, n := range r.cfg.sizes() {
				r.text.heartbeat("%s: %s of %d bytes, %v", r.op.name, variant, n, time.Since(r.rep.Start).Round(time.Second))
				if err := r.oneSidedRow(ctx, e, variant, n); err != nil {
					return err
				}
			}
		}
	}
	r.finish()
	return nil
}

func (r *runner) oneSidedRow(ctx context.Context, e *ends, variant string, n int) error {
	op := *r.op
	op.run = func(ctx context.Context, _ *ubcoll.Comm, _ *args) error { return e.run(ctx, variant, n) }
	s := op.shape(place{r.c.Size(), r.c.Rank(), -1}, n)
	k := &task{c: r.c, op: &op, shape: s, times: r.cfg.Aggregate, data: dataOf(dtype.Uint8, ubcoll.Sum, r.c.Size()),
		src: e.part(0, s.src.n), dst: e.part(1, s.dst.n), shifts: make([]args, 1), cu: r.cu}
	if e.mem.onDevice() {
		k.in, k.out, k.extent = e.mem, e.mem, e.max+n
	}
	row := Row{Size: n, Count: n, Type: dtype.Uint8.String(), Reduction: variant, Root: -1}
	var err error
	if row.Out, err = r.result(ctx, k, n); err != nil {
		return err
	}
	// LastOp does not tell of one-sided operations.
	row.Out.Algorithm, row.Out.Source, row.Out.Destination, row.Out.Levels = r.op.name+" "+variant, "direct", "direct", []Level{}
	r.rep.Results = append(r.rep.Results, row)
	r.text.row(&row)
	return nil
}
