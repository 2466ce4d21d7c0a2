package bench

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/hw/cuda"
	"github.com/ubcoll/ubcoll/internal/verify"
)

const byteType = dtype.Uint8

// releasePauses is the number of pauses between the barrier and a timed call. They give the barrier's release time to reach
// the last rank. The programs of tools/peers do the same.
const releasePauses = 20

// epoch is a fixed start: time.Since(epoch) reads the monotonic clock, and only that.
var epoch = time.Now()

// clockCost returns how much reading the clock adds to a measured time: the median of back-to-back readings.
func clockCost() time.Duration {
	d := make([]time.Duration, 1001)
	for i := range d {
		start := time.Since(epoch)
		d[i] = time.Since(epoch) - start
	}
	slices.Sort(d)
	return d[len(d)/2]
}

// task is one measurement: a size, type, reduction and root, either out of place or in place.
type task struct {
	c       *ubcoll.Comm   // calls on it block
	stream  *ubcoll.Stream // calls are queued here; if nil, they block
	cu      *cuda.Stream   // the same stream, if this package captures it; nil: graph.Capture does
	capture bool           // check captures its call in a graph and launches that
	op      *operation
	who     int // as which rank this one fills its input; a pair has 0 and 1 where the two are combined
	shape   shape
	args    args
	data    verify.Data
	inPlace bool

	src, dst []byte // the memory of args
	guard    []byte // the bytes after the destination, which no call may write
	fresh    []byte // in place: the input, copied to src before each call
	in, out  *memory
	extent   int    // how many bytes of in and out are used, with the guard
	times    int    // operations in a call
	shifts   []args // args at several places of the memory; queued calls take them in turn
	sum      byte   // of all bytes that were read, so that reads are not optimized away
}

// guarded is how many bytes after the destination are checked.
const guarded = 64

// newTask makes a task that uses buffers a and b. In place, its calls use b alone, and a keeps a copy of the input.
func newTask(c *ubcoll.Comm, cfg *Config, op *operation, s shape, t dtype.Type, red ubcoll.Op,
	root int, a, b *memory, inPlace bool) *task {
	from, size, peer := a, s.size*t.Size(), placeOf(c, root).pair()
	if inPlace {
		from = b
	}
	k := &task{c: c, op: op, who: c.Rank(), shape: s, inPlace: inPlace, times: cfg.Aggregate, data: dataOf(t, red, c.Size()), in: from,
		out: b}
	for at := 0; at == 0 || at+size <= len(b.bytes) && at/size < shifts; at += size {
		x := args{root: root, peer: peer, op: red, sends: s.sends, recvs: s.recvs, window: cfg.Window}
		src, dst := span{0, s.src.n}, span{0, s.dst.n}
		if inPlace {
			src, dst = s.src, s.dst
		}
		x.src, _ = from.view(at, src, t)
		x.dst, _ = b.view(at, dst, t)
		if op.single {
			x.dst, _ = from.view(at, span{0, s.size}, t)
		}
		k.shifts = append(k.shifts, x)
		if at > 0 {
			continue
		}
		k.args = x
		_, k.src = from.view(0, src, t)
		if op.single {
			k.out = from
		}
		_, k.dst = k.out.view(0, dst, t)
		end := (dst.at + dst.n) * t.Size()
		if inPlace || op.single { // the bytes after the result belong to the input
			end = size
		}
		k.extent = min(max(size, end)+guarded, len(b.bytes))
		k.guard = k.out.bytes[end:min(end+guarded, k.extent)]
		if size == 0 {
			break
		}
	}
	if inPlace {
		k.fresh = a.bytes[:len(k.src)]
	}
	return k
}

// shifts is the number of places in the memory that queued calls take in turn, if the memory is large enough.
// nccl-tests does the same: otherwise small sizes would stay in caches.
const shifts = 20

// view returns the elements s of the part of m that begins at byte at.
func (m *memory) view(at int, s span, t dtype.Type) (ubcoll.Vec, []byte) {
	i, j := at+s.at*t.Size(), at+(s.at+s.n)*t.Size()
	return m.vec.Slice(i, j).As(t), m.bytes[i:j]
}

// MulSum is the pre-multiplied sum that nccl-tests calls "mulsum". It doubles every source.
var MulSum = ubcoll.PreMulSum(2)

// dataOf returns the data for checks. An operation that does not reduce takes the data of a sum.
func dataOf(t dtype.Type, red ubcoll.Op, ranks int) verify.Data {
	d := verify.Data{Type: t, Ranks: ranks}
	switch red {
	case ubcoll.Prod:
		d.Op = cpu.Prod
	case ubcoll.Min:
		d.Op = cpu.Min
	case ubcoll.Max:
		d.Op = cpu.Max
	case ubcoll.Avg:
		d.Average = true
	case MulSum:
		d.Factor = 2
	}
	return d
}

// call makes the call that is timed. Its operations take as in turn.
func (t *task) call(ctx context.Context, c *ubcoll.Comm, as []args) error {
	if t.times == 1 {
		return t.op.run(ctx, c, &as[0])
	}
	if t.op.trips > 0 { // groups are for collectives, not for messages
		return t.calls(ctx, c, as)
	}
	return ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error { return t.calls(ctx, g, as) })
}

func (t *task) calls(ctx context.Context, c *ubcoll.Comm, as []args) error {
	for i := range t.times {
		if err := t.op.run(ctx, c, &as[i%len(as)]); err != nil {
			return err
		}
	}
	return nil
}

// prepare does this rank's work between two calls: it rewrites the whole input and reads the whole output. It leaves
// device memory alone, because the host has only a copy.
func (t *task) prepare() {
	if t.out.onDevice() {
		return
	}
	if t.inPlace {
		copy(t.src, t.fresh)
	} else {
		rewrite(t.src)
	}
	t.sum += read(t.dst)
}

// each times every call by itself and puts the times into us, in microseconds. It subtracts clock, the cost of reading
// the clock.
func (t *task) each(ctx context.Context, warmup int, us []float64, clock time.Duration, call func() error) error {
	for i := -warmup; i < len(us); i++ {
		if t.op.passive { // the peer may still be about this rank's memory
			if err := coll.Barrier(ctx, t.c); err != nil {
				return err
			}
		}
		t.prepare()
		if err := coll.Barrier(ctx, t.c); err != nil {
			return err
		}
		for range releasePauses {
			spin.Pause()
		}
		start := time.Since(epoch)
		if err := call(); err != nil {
			return err
		}
		d := time.Since(epoch) - start - clock
		if i >= 0 {
			us[i] = max(0, float64(d)/1e3)
		}
	}
	return nil
}

// untimed makes n calls back to back.
func (t *task) untimed(ctx context.Context, n int) error {
	for range n {
		if err := t.call(ctx, t.c, t.shifts[:1]); err != nil {
			return err
		}
	}
	return nil
}

// loop times n calls back to back on buffers that nobody touches in between, as nccl-tests does, and returns their
// mean.
func (t *task) loop(ctx context.Context, n int) (us float64, err error) {
	if err := coll.Barrier(ctx, t.c); err != nil {
		return 0, err
	}
	start := time.Since(epoch)
	if err := t.untimed(ctx, n); err != nil {
		return 0, err
	}
	return float64(time.Since(epoch)-start) / 1e3 / float64(n), nil
}

// queue times n calls back to back on the stream, or launches of a graph that holds them, from the queuing of the first
// to the end of the last. It returns the mean of a call. The first launch of the graph is not timed: it uploads the
// graph to the device.
func (t *task) queue(ctx context.Context, warmup, n, launches int) (us float64, err error) {
	turns := slices.Concat(t.shifts, t.shifts)
	calls := func(c *ubcoll.Comm, n int) error {
		for i := range n {
			at := i * t.times % len(t.shifts)
			if err := t.call(ctx, c, turns[at:at+len(t.shifts)]); err != nil {
				return err
			}
		}
		return nil
	}
	q := t.c.On(t.stream)
	run, times := func() error { return calls(q, n) }, 1
	if err := errors.Join(calls(q, warmup), t.stream.Sync(ctx)); err != nil {
		return 0, err
	}
	if launches > 0 {
		launch, end, err := t.graph(ctx, q, func(c *ubcoll.Comm) error { return calls(c, n) })
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, end()) }()
		run, times = launch, launches
		if err := errors.Join(run(), t.stream.Sync(ctx)); err != nil {
			return 0, err
		}
	}
	if err := coll.Barrier(ctx, t.c); err != nil {
		return 0, err
	}
	start := time.Since(epoch)
	for range times {
		if err := run(); err != nil {
			return 0, errors.Join(err, t.stream.Sync(ctx))
		}
	}
	if err := t.stream.Sync(ctx); err != nil {
		return 0, err
	}
	return float64(time.Since(epoch)-start) / 1e3 / float64(n*times), nil
}

// graph captures calls in a graph. launch queues the graph, end closes it.
func (t *task) graph(ctx context.Context, q *ubcoll.Comm, calls func(*ubcoll.Comm) error) (launch, end func() error,
	err error) {
	if t.cu == nil {
		g, err := graph.Capture(ctx, q, calls)
		if err != nil {
			return nil, nil, err
		}
		return func() error { return g.Launch(ctx) }, g.Close, nil
	}
	if err := t.cu.BeginCapture(); err != nil {
		return nil, nil, err
	}
	err = calls(q)
	g, failed := t.cu.EndCapture()
	if err = errors.Join(err, failed); err != nil {
		return nil, nil, err
	}
	return func() error { return g.Launch(t.cu) }, g.Close, nil
}

// once runs the operation once: blocking, on the stream, or in a graph that it launches there.
func (t *task) once(ctx context.Context) error {
	if t.stream == nil {
		return t.op.run(ctx, t.c, &t.args)
	}
	q := t.c.On(t.stream)
	if !t.capture {
		return errors.Join(t.op.run(ctx, q, &t.args), t.stream.Sync(ctx))
	}
	g, err := graph.Capture(ctx, q, func(c *ubcoll.Comm) error { return t.op.run(ctx, c, &t.args) })
	if err != nil {
		return err
	}
	return errors.Join(g.Launch(ctx), t.stream.Sync(ctx), g.Close())
}

// move uploads or downloads the memory that the task uses, as copies does.
func (t *task) move(ctx context.Context, copies func(*memory, context.Context, int) error) error {
	if err := copies(t.out, ctx, t.extent); err != nil || t.in == t.out {
		return err
	}
	return copies(t.in, ctx, t.extent)
}

// check runs the operation once on data whose result is known. It returns the number of wrong elements on this rank: in
// the result, and in the guard and the input, which the operation must not write to.
func (t *task) check(ctx context.Context, seed uint64) (wrong int, err error) {
	d := t.data
	d.Seed = seed
	const poison = 0x55 // replaces the last result, with which an operation that does nothing would pass
	for i := range t.dst {
		t.dst[i] = poison
	}
	for i := range t.guard {
		t.guard[i] = poison
	}
	if len(t.src) > 0 {
		fill(d, t.src, t.who)
	}
	if t.op.combines {
		copy(t.dst, t.src)
	}
	if err := t.move(ctx, (*memory).upload); err != nil {
		return 0, err
	}
	if t.op.open != nil { // a one-sided operation does not wait until the peer has filled its memory
		if err := coll.Barrier(ctx, t.c); err != nil {
			return 0, err
		}
	}
	if err := t.once(ctx); err != nil {
		return 0, err
	}
	if t.op.passive {
		if err := coll.Barrier(ctx, t.c); err != nil {
			return 0, err
		}
	}
	if err := t.move(ctx, (*memory).download); err != nil {
		return 0, err
	}
	for _, b := range t.guard {
		if b != poison {
			wrong++
		}
	}
	size := d.Type.Size()
	out := t.dst
	if t.op.single && len(out) == 0 {
		out = t.src
	}
	for _, p := range t.shape.want {
		if p.n == 0 {
			continue
		}
		wrong += check(d, out[p.at*size:][:p.n*size], p.first, p.rank)
	}
	if !t.inPlace && len(t.src) > 0 {
		wrong += check(d, t.src, 0, t.who)
	}
	return wrong, nil
}

// fill fills b with rank's input.
func fill(d verify.Data, b []byte, rank int) {
	parts(b, d.Type.Size(), func(p []byte, at int) int {
		d.FillPart(unsafe.Pointer(&p[0]), at, len(p)/d.Type.Size(), rank)
		return 0
	})
}

// check counts the wrong elements of b. They should be rank's input from element first on; if rank is reduced, the
// reduction of all ranks' inputs.
func check(d verify.Data, b []byte, first, rank int) int {
	return parts(b, d.Type.Size(), func(p []byte, at int) (wrong int) {
		n := len(p) / d.Type.Size()
		if rank == reduced {
			wrong, _ = d.Check(unsafe.Pointer(&p[0]), first+at, n)
		} else {
			wrong, _ = d.CheckInput(unsafe.Pointer(&p[0]), first+at, n, rank)
		}
		return wrong
	})
}

// parts divides b into pieces and calls do for them on all processors; at is the first element of a piece. It returns
// the sum of do's results.
func parts(b []byte, size int, do func(p []byte, at int) int) int {
	const piece = 256 << 10
	if len(b) <= piece {
		return do(b, 0)
	}
	var sum, next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(b)/piece) {
		wait.Go(func() {
			for {
				at := int(next.Add(piece)) - piece
				if at >= len(b) {
					return
				}
				sum.Add(int64(do(b[at:min(at+piece, len(b))], at/size)))
			}
		})
	}
	wait.Wait()
	return int(sum.Load())
}
