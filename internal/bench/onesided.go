package bench

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/p2p"
)

// oneSided are the operations by which one rank reads or writes another's memory. They run in pairs of ranks (see placeOf),
// both ways at once; put_bw from the first half of the ranks to the second. Some have several variants, which the table names
// in place of a reduction. Each rank has one region of memory: a source, a destination and, for packets, two areas that calls
// use in turn. There are two because a rank may begin the next call before its peer has read the packets of this one.
var oneSided = []operation{
	{name: "channel", outOfPlace: true, device: true, trips: 1, bus: once, shape: pairs, peers: paired, open: openChannel, parts: 6,
		variants: []string{"put", "get", packet}, elements: dtype.Uint8},
	{name: "window", outOfPlace: true, device: true, trips: 1, bus: once, shape: pairs, peers: paired, open: openWindow, parts: 2,
		variants: []string{"put", "get"}, elements: dtype.Uint8},
	{name: putBandwidth, outOfPlace: true, device: true, trips: 1, window: true, bus: ofHalves, shape: halves, peers: opposite,
		open: openPuts, parts: 2, elements: dtype.Uint8, passive: true},
	{name: "accumulate", outOfPlace: true, trips: 1, bus: once, shape: combined, peers: paired, open: openAtomics(accumulate),
		parts: 2, elements: dtype.Float32, passive: true, combines: true},
	{name: "fetch_add", outOfPlace: true, trips: 1, bus: once, shape: added, peers: paired, open: openAtomics(fetchAdd),
		parts: 2, elements: dtype.Uint64, bytes: 8, passive: true, combines: true},
	{name: "compare_and_swap", outOfPlace: true, trips: 1, bus: once, shape: swapped, peers: paired, open: openAtomics(compareAndSwap),
		parts: 2, elements: dtype.Uint64, bytes: 8, passive: true, combines: true},
}

// putBandwidth is the name of the operation that measures bandwidth and rate of puts, as OSU's osu_put_bw does.
const putBandwidth = "put_bw"

// packet is the variant that memory of devices has on one host alone.
const packet = "packet"

// ends holds what a rank needs for the one-sided operations of a run.
type ends struct {
	mem  *memory // the region; if it is on a device, the host has a copy of the first two parts
	max  int     // bytes of a part
	peer int     // the other rank of the pair, or -1
	puts int     // of one call, where calls are windows
	run  func(ctx context.Context, variant string, n int) error
	done func() error

	word   uint64         // what compare_and_swap has set the peer's word to
	stream *ubcoll.Stream // calls on a device are queued here
	cu     *cuda.Stream   // the same stream, for captures
}

func (e *ends) part(i, n int) []byte { return e.mem.bytes[i*e.max:][:n] }

// openEnds allocates the region and opens op's channel or window on it. Collective.
func (r *runner) openEnds(ctx context.Context) (*ends, error) {
	const line = 64
	e := &ends{max: (max(r.cfg.MaxBytes, r.op.bytes) + line) &^ (line - 1), peer: placeOf(r.c, -1).pair(), puts: r.cfg.Window,
		stream: r.stream, cu: r.cu, mem: &memory{}}
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
	if e.peer < 0 {
		e.run, e.done = func(context.Context, string, int) error { return nil }, reg.Close
		return nil
	}
	ch, err := p2p.Connect(ctx, c, e.peer, reg)
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
			if variant == packet {
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

// window makes the region a window, which done closes; over device memory its calls are queued on the stream.
func (e *ends) window(ctx context.Context, c *ubcoll.Comm, flags ubcoll.WindowFlags) (*ubcoll.Window, error) {
	w, err := c.RegisterWindow(ctx, e.mem.vec, ubcoll.WindowCollSymmetric|flags)
	if err != nil {
		return nil, err
	}
	e.done = w.Close
	if e.mem.onDevice() {
		w = w.On(e.stream)
	}
	return w, nil
}

func openWindow(ctx context.Context, c *ubcoll.Comm, e *ends) error {
	w, err := e.window(ctx, c, ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	peer := e.peer
	e.run = func(ctx context.Context, variant string, n int) error {
		if peer < 0 {
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

// openPuts makes a call a window of puts to one place, and a flush, which returns when all have arrived. The peer only sees to
// it that its communicator makes progress: it waits in a barrier.
func openPuts(ctx context.Context, c *ubcoll.Comm, e *ends) error {
	w, err := e.window(ctx, c, ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	half := c.Size() / 2
	e.run = func(ctx context.Context, _ string, n int) error {
		if c.Rank() >= half {
			return nil
		}
		src := e.mem.vec.Slice(0, n)
		for range e.puts {
			if err := w.Put(ctx, c.Rank()+half, e.max, src); err != nil {
				return err
			}
		}
		return w.Flush(ctx)
	}
	return nil
}

// openAtomics makes a call what do does with the window's memory of the peer.
func openAtomics(do func(ctx context.Context, w *ubcoll.Window, e *ends, n int) error) func(context.Context, *ubcoll.Comm, *ends) error {
	return func(ctx context.Context, c *ubcoll.Comm, e *ends) error {
		w, err := e.window(ctx, c, ubcoll.WindowAtomic)
		if err != nil {
			return err
		}
		e.run = func(ctx context.Context, _ string, n int) error {
			if e.peer < 0 {
				return nil
			}
			return do(ctx, w, e, n)
		}
		return nil
	}
}

// accumulate adds the source to the peer's destination. The flush is a part of the call: between hosts an Accumulate returns
// when the source may be changed.
func accumulate(ctx context.Context, w *ubcoll.Window, e *ends, n int) error {
	if err := w.Accumulate(ctx, e.peer, e.max, e.mem.vec.Slice(0, n).As(dtype.Float32), ubcoll.Sum); err != nil {
		return err
	}
	return w.Flush(ctx)
}

// fetchAdd adds the source to the peer's word. What that was goes behind this rank's own word.
func fetchAdd(ctx context.Context, w *ubcoll.Window, e *ends, _ int) (err error) {
	words := e.mem.words
	words[e.max/8+1], err = w.FetchAdd(ctx, e.peer, e.max, words[0])
	return err
}

// compareAndSwap replaces the peer's word, which it takes to be what it has set it to, by the source. Besides, only a check
// changes that word; then the second try swaps.
func compareAndSwap(ctx context.Context, w *ubcoll.Window, e *ends, _ int) error {
	words := e.mem.words
	for {
		was, err := w.CompareAndSwap(ctx, e.peer, e.max, e.word, words[0])
		if err != nil {
			return err
		}
		if was == e.word {
			words[e.max/8+1], e.word = was, words[0]
			return nil
		}
		e.word = was
	}
}

// combined is the shape of what is combined with what the destination holds: the input of its own rank. The want is the
// reduction of the inputs of both.
func combined(p place, count int) shape {
	s := pairs(p, count)
	for i := range s.want {
		s.want[i].rank = reduced
	}
	return s
}

// added is the shape of a word to which another one is added. Behind it is what the peer's word was before: the peer's input.
func added(p place, count int) shape {
	s := combined(p, count)
	return s.fetched(p, count)
}

// swapped is the shape of a word that the peer's input replaces.
func swapped(p place, count int) shape {
	s := pairs(p, count)
	for i := range s.want {
		s.want[i].rank = p.second(true)
	}
	return s.fetched(p, count)
}

// fetched adds what the peer's words were to the destination.
func (s shape) fetched(p place, count int) shape {
	if s.dst.n > 0 {
		s.dst.n *= 2
		s.want = append(s.want, piece{count, count, p.second(true), 0})
	}
	return s
}

// second is 1 for the second rank of a pair and 0 for the first, or the other way round for the peer. Inputs that are combined
// in pairs are those of 0 and 1.
func (p place) second(peer bool) int {
	if (p.pair() < p.rank) != peer {
		return 1
	}
	return 0
}

// oneSided measures the variants that cfg names, each on every size.
func (r *runner) oneSided(ctx context.Context) (err error) {
	e, err := r.openEnds(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.done(), e.mem.close()) }()
	variants, not := r.variants(!r.dev.IsHost())
	r.text.leftOut(not)
	r.text.columns()
	sizes := r.cfg.sizes()
	if r.op.variants == nil {
		variants = []string{""}
	}
	if r.op.bytes > 0 {
		sizes = []int{r.op.bytes}
	}
	for cycle := 0; r.cfg.Cycles == 0 || cycle < r.cfg.Cycles; cycle++ {
		for _, variant := range variants {
			for _, n := range sizes {
				r.text.heartbeat("%s: %d bytes, %v", name(r.op, variant), n, time.Since(r.rep.Start).Round(time.Second))
				if err := r.oneSidedRow(ctx, e, variant, n); err != nil {
					return err
				}
			}
		}
	}
	r.finish()
	return nil
}

// variants returns which of the variants that cfg names can be measured here, and which not: no kernel writes packets into
// memory of another host.
func (r *runner) variants(onDevices bool) (can, not []string) {
	for _, v := range r.op.variants {
		switch {
		case r.cfg.Variants != nil && !slices.Contains(r.cfg.Variants, v):
		case v == packet && onDevices && r.c.LocalSize() < r.c.Size():
			not = append(not, v)
		default:
			can = append(can, v)
		}
	}
	return can, not
}

// name is an operation with the variant, if it has some.
func name(o *operation, variant string) string { return strings.TrimSpace(o.name + " " + variant) }

func (r *runner) oneSidedRow(ctx context.Context, e *ends, variant string, n int) error {
	op := *r.op
	t, at, ranks := op.elements, placeOf(r.c, -1), r.c.Size()
	s, who := op.shape(at, n/t.Size()), at.rank
	n = s.size * t.Size()
	op.run = func(ctx context.Context, _ *ubcoll.Comm, _ *args) error { return e.run(ctx, variant, n) }
	if op.combines {
		ranks, who = 2, at.second(false)
	}
	k := &task{c: r.c, op: &op, who: who, shape: s, times: r.cfg.Aggregate, data: dataOf(t, ubcoll.Sum, ranks),
		src: e.part(0, s.src.n*t.Size()), dst: e.part(1, s.dst.n*t.Size()), shifts: make([]args, 1), cu: r.cu}
	if e.mem.onDevice() {
		k.in, k.out, k.extent = e.mem, e.mem, e.max+n
	}
	row := Row{Size: n, Count: s.param, Type: typeName(t), Reduction: cmp.Or(variant, "none"), Root: -1}
	var err error
	if row.Out, err = r.result(ctx, k, n); err != nil {
		return err
	}
	// LastOp does not tell of one-sided operations.
	row.Out.Algorithm, row.Out.Source, row.Out.Destination, row.Out.Levels = name(r.op, variant), "direct", "direct", []Level{}
	row.Out.Way, row.Out.Wire = "", ""
	row.Out.crossed(r.c, r.op)
	r.rep.Results = append(r.rep.Results, row)
	r.text.row(&row)
	return nil
}
