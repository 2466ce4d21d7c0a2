package bench

import (
	"context"
	"slices"
	"time"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/hw/cpu/spin"
	"github.com/ubcoll/ubcoll/internal/verify"
)

const byteType = dtype.Uint8

// settle is how many pauses follow the barrier before a timed call: time for the last rank's release to arrive, as in
// the programs of tools/peers.
const settle = 20

// epoch makes time.Since one reading of the monotonic clock.
var epoch = time.Now()

// clockCost is what two readings of the clock add to the time between them: the median of back-to-back readings.
func clockCost() time.Duration {
	d := make([]time.Duration, 1001)
	for i := range d {
		start := time.Since(epoch)
		d[i] = time.Since(epoch) - start
	}
	slices.Sort(d)
	return d[len(d)/2]
}

// task is one size, type, reduction and root, out of place or in place.
type task struct {
	c       *ubcoll.Comm
	op      *operation
	shape   shape
	args    args
	data    verify.Data
	inPlace bool

	src, dst []byte // the memory of args
	fresh    []byte // in place: what src holds before each call
	times    int    // operations in a call
	sum      byte   // of all that was read, so that reading is not optimized away
}

// newTask views buffers a and b; in place, b alone is used, and a keeps a copy of the input.
func newTask(c *ubcoll.Comm, cfg *Config, op *operation, s shape, t dtype.Type, red ubcoll.Op,
	root int, a, b *memory, inPlace bool) *task {
	src, dst := span{0, s.src.n}, span{0, s.dst.n}
	from := a
	if inPlace {
		src, dst, from = s.src, s.dst, b
	}
	k := &task{c: c, op: op, shape: s, inPlace: inPlace, times: cfg.Aggregate, data: dataOf(t, red, c.Size()),
		args: args{root: root, op: red, sends: s.sends, recvs: s.recvs}}
	k.args.src, k.src = from.view(src, t)
	k.args.dst, k.dst = b.view(dst, t)
	if op.single {
		k.args.dst, _ = from.view(span{0, s.size}, t)
		_, k.dst = from.view(dst, t)
	}
	if inPlace {
		k.fresh = a.bytes[:len(k.src)]
	}
	return k
}

// view is elements of m.
func (m *memory) view(s span, t dtype.Type) (ubcoll.Vec, []byte) {
	i, j := s.at*t.Size(), (s.at+s.n)*t.Size()
	return m.vec.Slice(i, j).As(t), m.bytes[i:j]
}

// MulSum is the pre-multiplied sum that is measured as "mulsum", nccl-tests' name: it doubles every source.
var MulSum = ubcoll.PreMulSum(2)

// dataOf is the data for checks; what only moves takes those of a sum.
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

// call is what is timed.
func (k *task) call(ctx context.Context) error {
	if k.times == 1 {
		return k.op.run(ctx, k.c, &k.args)
	}
	if k.op.trips > 0 { // messages are not for groups of collectives
		for range k.times {
			if err := k.op.run(ctx, k.c, &k.args); err != nil {
				return err
			}
		}
		return nil
	}
	return ubcoll.Group(ctx, k.c, func(g *ubcoll.Comm) error {
		for range k.times {
			if err := k.op.run(ctx, g, &k.args); err != nil {
				return err
			}
		}
		return nil
	})
}

// prepare is this rank's work between two calls: it rewrites its whole input and reads its whole output.
func (k *task) prepare() {
	if k.inPlace {
		copy(k.src, k.fresh)
	} else {
		rewrite(k.src)
	}
	k.sum += read(k.dst)
}

// each times every call by itself; us takes the times, in microseconds.
func (k *task) each(ctx context.Context, warmup int, us []float64, clock time.Duration) error {
	for i := -warmup; i < len(us); i++ {
		k.prepare()
		if err := coll.Barrier(ctx, k.c); err != nil {
			return err
		}
		for range settle {
			spin.Pause()
		}
		start := time.Since(epoch)
		if err := k.call(ctx); err != nil {
			return err
		}
		d := time.Since(epoch) - start - clock
		if i >= 0 {
			us[i] = max(0, float64(d)/1e3)
		}
	}
	return nil
}

// loop times n calls back to back on buffers that nobody touches in between, as nccl-tests does, and gives their mean.
func (k *task) loop(ctx context.Context, warmup, n int) (us float64, err error) {
	for range warmup {
		if err := k.call(ctx); err != nil {
			return 0, err
		}
	}
	if err := coll.Barrier(ctx, k.c); err != nil {
		return 0, err
	}
	start := time.Since(epoch)
	for range n {
		if err := k.call(ctx); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(epoch)-start) / 1e3 / float64(n), nil
}

// check runs the operation once on data whose result is known, and counts the wrong elements on this rank: of the
// result, and of the input, which is not to be written to.
func (k *task) check(ctx context.Context, seed uint64) (wrong int, err error) {
	d := k.data
	d.Seed = seed
	for i := range k.dst {
		k.dst[i] = 0x55 // an operation that does nothing must not find the last result there
	}
	if len(k.src) > 0 {
		d.Fill(unsafe.Pointer(&k.src[0]), k.shape.src.n, k.c.Rank())
	}
	if k.op.open != nil { // nobody waits for the peer there
		if err := coll.Barrier(ctx, k.c); err != nil {
			return 0, err
		}
	}
	if err := k.op.run(ctx, k.c, &k.args); err != nil {
		return 0, err
	}
	size := d.Type.Size()
	out := k.dst
	if k.op.single && len(out) == 0 {
		out = k.src
	}
	for _, p := range k.shape.want {
		if p.n == 0 {
			continue
		}
		at, n := unsafe.Pointer(&out[p.at*size]), 0
		if p.rank == reduced {
			n, _ = d.Check(at, p.first, p.n)
		} else {
			n, _ = d.CheckInput(at, p.first, p.n, p.rank)
		}
		wrong += n
	}
	if !k.inPlace && len(k.src) > 0 {
		n, _ := d.CheckInput(unsafe.Pointer(&k.src[0]), 0, k.shape.src.n, k.c.Rank())
		wrong += n
	}
	return wrong, nil
}
