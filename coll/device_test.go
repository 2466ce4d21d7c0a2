package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/internal/verify"
	"github.com/ubcoll/ubcoll/register"
)

// memory is a buffer on a device. A test uses a part in the middle; the memory around it must not change.
type memory struct {
	buf        *ubcoll.Buffer[byte]
	host       []byte
	at, length int
}

const poison = 0xa5

func newMemory(c *ubcoll.Comm, dev ubcoll.Device, most int) (*memory, error) {
	b, err := ubcoll.Alloc[byte](c, dev, most+256)
	return &memory{buf: b, host: make([]byte, most+256)}, err
}

// use fills the whole buffer with a pattern, fills n bytes from 64+shift on, and returns a view of these.
func (m *memory) use(ctx context.Context, shift, n int, t dtype.Type, fill func(p unsafe.Pointer)) (ubcoll.Vec, error) {
	m.at, m.length = 64+shift, n
	for i := range m.host {
		m.host[i] = poison
	}
	if fill != nil && n > 0 {
		fill(unsafe.Pointer(&m.host[m.at]))
	}
	err := m.buf.CopyFrom(ctx, m.host)
	return m.buf.Vec().Slice(m.at, m.at+n).As(t), err
}

// fetch reads everything back and checks the memory around the view.
func (m *memory) fetch(ctx context.Context) (unsafe.Pointer, error) {
	if err := m.buf.CopyTo(ctx, m.host); err != nil {
		return nil, err
	}
	for i, b := range m.host {
		if (i < m.at || i >= m.at+m.length) && b != poison {
			return nil, fmt.Errorf("byte %d is %#x, outside of [%d,+%d)", i, b, m.at, m.length)
		}
	}
	return unsafe.Pointer(&m.host[m.at]), nil
}

var deviceOps = []struct {
	op      ubcoll.Op
	cpu     cpu.Op
	average bool
}{{ubcoll.Sum, cpu.Sum, false}, {ubcoll.Prod, cpu.Prod, false}, {ubcoll.Min, cpu.Min, false},
	{ubcoll.Max, cpu.Max, false}, {ubcoll.Avg, cpu.Sum, true}}

// trial is one collective with random arguments; everything but the memory's place is the same on all ranks.
type trial struct {
	data    verify.Data
	op      ubcoll.Op
	count   int
	root    int
	inPlace bool
	shift   int // in elements; differs between ranks
	kind    string
}

var trialKinds = []string{"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "gather", "scatter",
	"all_to_all"}

func newTrial(r *rand.Rand, n, most int) trial {
	o := deviceOps[r.IntN(len(deviceOps))]
	k := trial{op: o.op, root: r.IntN(n), inPlace: r.IntN(2) == 0, kind: trialKinds[r.IntN(len(trialKinds))]}
	k.data = verify.Data{Type: dtype.Type(1 + r.IntN(int(dtype.Bool))), Op: o.cpu, Average: o.average, Ranks: n,
		Seed: r.Uint64()}
	if k.data.Type == dtype.Bool { // the fewer operations more often
		o = deviceOps[2+r.IntN(2)]
		k.op, k.data.Op, k.data.Average = o.op, o.cpu, o.average
	}
	most /= k.data.Type.Size()
	switch k.kind {
	case "all_reduce", "reduce", "broadcast":
	default:
		most /= n
	}
	switch r.IntN(4) {
	case 0:
		k.count = r.IntN(9)
	case 1:
		k.count = r.IntN(min(most, 600) + 1)
	default:
		k.count = r.IntN(most + 1)
	}
	return k
}

func (k trial) String() string {
	return fmt.Sprintf("%s of %d %v, %v, average %v, root %d, in place %v", k.kind, k.count, k.data.Type, k.op,
		k.data.Average, k.root, k.inPlace)
}

// run does the trial with two pieces of memory; each must have room for all ranks' data.
func (k trial) run(ctx context.Context, c *ubcoll.Comm, a, b *memory, sync func() error) error {
	size, me, n := k.data.Type.Size(), c.Rank(), c.Size()
	one := k.count * size
	srcN, dstN := k.count, k.count // elements
	switch k.kind {
	case "reduce_scatter", "scatter":
		srcN *= n
	case "all_gather", "gather":
		dstN *= n
	case "all_to_all":
		srcN, dstN = srcN*n, dstN*n
		k.inPlace = false
	}
	atRoot := me == k.root
	var src, dst ubcoll.Vec
	var err error
	out := b
	whole := max(srcN, dstN) * size
	input := func(p unsafe.Pointer) { k.data.Fill(p, srcN, me) }
	switch {
	case !k.inPlace:
		if src, err = a.use(ctx, k.shift*size, srcN*size, k.data.Type, input); err != nil {
			return err
		}
		if dst, err = b.use(ctx, (k.shift+1)*size, dstN*size, k.data.Type, nil); err != nil {
			return err
		}
	default:
		out = a
		v, err := a.use(ctx, k.shift*size, whole, k.data.Type, func(p unsafe.Pointer) {
			if dstN > srcN { // the source is this rank's slice
				p = unsafe.Add(p, me*one)
			}
			input(p)
		})
		if err != nil {
			return err
		}
		src, dst = v, v
		if srcN < dstN {
			src = v.Slice(me*k.count, (me+1)*k.count)
		}
		if dstN < srcN {
			dst = v.Slice(me*k.count, (me+1)*k.count)
		}
		if k.kind == "gather" && !atRoot {
			dst = ubcoll.Vec{}
		}
	}
	switch k.kind {
	case "all_reduce":
		err = coll.AllReduce(ctx, c, dst, src, k.op)
	case "reduce_scatter":
		err = coll.ReduceScatter(ctx, c, dst, src, k.op)
	case "reduce":
		err = coll.Reduce(ctx, c, dst, src, k.op, k.root)
	case "all_gather":
		err = coll.AllGather(ctx, c, dst, src)
	case "broadcast":
		if !atRoot {
			src = dst
		}
		err = coll.Broadcast(ctx, c, src, k.root)
	case "gather":
		err = coll.Gather(ctx, c, dst, src, k.root)
	case "scatter":
		err = coll.Scatter(ctx, c, dst, src, k.root)
	case "all_to_all":
		err = coll.AllToAll(ctx, c, dst, src)
	}
	if err == nil {
		err = sync()
	}
	if err != nil {
		return fmt.Errorf("%v: %w", k, err)
	}
	p, err := out.fetch(ctx)
	if err != nil {
		return fmt.Errorf("%v: %w", k, err)
	}
	if k.count == 0 {
		return nil
	}
	return k.check(p, me, n, one)
}

// check checks the result at p.
func (k trial) check(p unsafe.Pointer, me, n, one int) error {
	var wrong int
	var at verify.Mismatch
	input := func(p unsafe.Pointer, first, count, rank int) {
		if wrong == 0 {
			wrong, at = k.data.CheckInput(p, first, count, rank)
		}
	}
	switch k.kind {
	case "all_reduce":
		wrong, at = k.data.Check(p, 0, k.count)
	case "reduce":
		if me == k.root {
			wrong, at = k.data.Check(p, 0, k.count)
		}
	case "reduce_scatter":
		if k.inPlace {
			p = unsafe.Add(p, me*one)
		}
		wrong, at = k.data.Check(p, me*k.count, k.count)
	case "all_gather", "gather":
		for r := range n {
			if k.kind == "all_gather" || me == k.root {
				input(unsafe.Add(p, r*one), 0, k.count, r)
			}
		}
	case "broadcast":
		if me != k.root || k.inPlace {
			input(p, 0, k.count, k.root)
		}
	case "scatter":
		if k.inPlace {
			p = unsafe.Add(p, me*one)
		}
		input(p, me*k.count, k.count, k.root)
	case "all_to_all":
		for r := range n {
			input(unsafe.Add(p, r*one), me*k.count, k.count, r)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%v: %d wrong, %v", k, wrong, at)
	}
	return nil
}

// mode is how operations run on devices.
type mode struct {
	algorithm ubcoll.Algorithm
	policy    register.Policy
	some      bool // every other rank registers its memory b
	queued    bool
}

// String leaves out the algorithm.
func (w mode) String() string { return fmt.Sprintf("%v/some=%v/queued=%v", w.policy, w.some, w.queued) }

// place is where a rank runs random operations.
type place struct {
	c         *ubcoll.Comm // on a stream if operations are queued
	sync      func() error // waits for the stream
	a, b      *memory
	same, own *rand.Rand // for what all ranks draw alike, and for what this rank draws
}

// random is a test of random operations.
type random struct {
	ranks  []int
	modes  []mode
	name   func(mode) string
	trials int // of each mode with each number of ranks
	most   int // bytes of each memory
	trial  func(context.Context, place) error
}

// run makes a subtest for each number of ranks and each mode.
func (r random) run(t *testing.T) {
	start := testkit.Seed(t)
	for i, n := range r.ranks {
		for j, w := range r.modes {
			t.Run(fmt.Sprintf("ranks=%d/%s", n, r.name(w)), func(t *testing.T) {
				testkit.Turn(t, i+j, 3)
				o := ubcoll.Options{Algorithm: w.algorithm, Register: w.policy}
				gputest.Run(t, n, o, func(ctx context.Context, c *ubcoll.Comm, dev ubcoll.Device) error {
					a, err1 := newMemory(c, dev, r.most)
					b, err2 := newMemory(c, dev, r.most)
					if err := errors.Join(err1, err2); err != nil {
						return err
					}
					if w.some && c.Rank()%2 == 0 {
						if _, err := c.RegisterBuffer(b.buf.Vec()); err != nil {
							return err
						}
					}
					view, sync, end, err := gputest.View(ctx, c, dev, w.queued)
					if err != nil {
						return err
					}
					defer end()
					same := rand.New(rand.NewPCG(start, uint64(n)))
					own := rand.New(rand.NewPCG(start, uint64(c.Rank())+100))
					for range r.trials {
						if err := r.trial(ctx, place{view, sync, a, b, same, own}); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// TestDevices runs collectives with random arguments on device memory, in every mode, direct and staged, blocking and
// on a stream.
func TestDevices(t *testing.T) {
	const most = 600 << 10
	r := random{
		ranks:  []int{1, 2, 3, 4, 8},
		trials: 6,
		most:   most,
		name:   func(w mode) string { return fmt.Sprintf("%s/%v", w.algorithm, w) },
		modes: []mode{
			{"", register.Auto, false, false},
			{"", register.Auto, false, true},
			{"two-shot", register.Auto, false, false},
			{"two-shot", register.Explicit, true, true},
			{"two-shot", register.Off, false, false},
			{"push", register.Auto, false, false},
			{"one-shot", register.Auto, false, true},
			{"ring", register.Auto, false, true},
			{"ring", register.Explicit, true, false},
		},
		trial: func(ctx context.Context, p place) error {
			k := newTrial(p.same, p.c.Size(), most)
			k.shift = p.own.IntN(8)
			return k.run(ctx, p.c, p.a, p.b, p.sync)
		},
	}
	if race.Enabled || testing.Short() { // fewer trials run the same code, and checking element by element is slow
		r.ranks, r.trials = []int{2, 3}, 2
	}
	if testkit.Daily() {
		r.ranks, r.modes = []int{3}, testkit.Sample(2, r.modes)
	}
	r.run(t)
}
