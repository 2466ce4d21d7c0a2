package collectives

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/race"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// Moves makes every collective except all-reduce, out of place and in place, with random lengths and kinds of memory,
// and checks every element.
func Moves(ctx context.Context, c *ubcoll.Comm) error {
	all := rand.New(rand.NewPCG(conform.Seed(), 2))
	mine := rand.New(rand.NewPCG(conform.Seed(), 2000+uint64(c.Rank())))
	sizes := []int{0, 1, 5, 48, 1000, 5000, 30000, 150001}
	if race.Enabled { // the instrumented code is the same for all sizes
		sizes = sizes[:len(sizes)-1]
	}
	rounds := 4 * len(sizes)
	if c.Size() > 16 {
		rounds /= 2 // with more ranks, half as many move as much
	}
	for k := range rounds {
		n, root, inPlace := sizes[k%len(sizes)], all.IntN(c.Size()), all.IntN(2) == 0
		if n > 50000 && c.Size() > 4 {
			n = 50000
		}
		op := []ubcoll.Op{ubcoll.Sum, ubcoll.Max, ubcoll.Avg}[all.IntN(3)]
		m := mover[int32]{ctx: ctx, c: c, n: n, root: root, inPlace: inPlace, salt: uint64(k),
			ws: conform.Where(mine.IntN(int(conform.NumWhere))), wd: conform.Where(mine.IntN(int(conform.NumWhere)))}
		h := mover[dtype.BF16]{ctx: ctx, c: c, n: n / 2, root: root, inPlace: inPlace, salt: uint64(k), ws: m.wd, wd: m.ws}
		counts := make([]int, c.Size()*c.Size())
		for i := range counts {
			counts[i] = all.IntN(n + 1)
		}
		if err := testkit.InOrder(
			func() error { return m.reduceScatter(op) },
			func() error { return h.reduceScatter(op) },
			func() error { return m.reduce(op) },
			func() error { return h.reduce(op) },
			m.allGather,
			m.gather,
			m.scatter,
			m.broadcast,
			m.allToAll,
			func() error { return m.allToAllV(counts) },
			func() error { return m.allGatherV(counts) },
			func() error { return m.gatherV(counts) },
			func() error { return m.scatterV(counts) },
			m.preMulSum); err != nil {
			return fmt.Errorf("call %d: %w", k, err)
		}
	}
	return movesBad(ctx, c)
}

type mover[T dtype.Elem] struct {
	ctx     context.Context
	c       *ubcoll.Comm
	n, root int
	inPlace bool
	salt    uint64
	ws, wd  conform.Where
	vals    [][]T // results of val, by rank or by pair of ranks
}

func (m *mover[T]) val(rank, i int) T {
	if m.vals == nil {
		m.vals = make([][]T, m.c.Size()*m.c.Size())
	}
	v := m.vals[rank]
	if v == nil {
		v = pattern(m.n*m.c.Size(), func(i int) T { return encode[T](value(ubcoll.Sum, rank, i, m.salt)) })
		m.vals[rank] = v
	}
	return v[i%period]
}

// expect returns the reduction of all ranks' values, by element.
func (m *mover[T]) expect(op ubcoll.Op) func(i int) T {
	p := m.c.Size()
	v := pattern(m.n*p, func(i int) T { return expect[T](op, p, i, m.salt) })
	return func(i int) T { return v[i%period] }
}

// run holds src and dst elements, fills the source, makes the call, and checks the elements of the destination against
// want.
func (m *mover[T]) run(what string, src, dst int, fill func(i int) T, call func(d, s ubcoll.Vec) error, want func(i int) T) error {
	s, err := conform.Hold[T](m.c, m.ws, src)
	if err != nil {
		return err
	}
	d, err := conform.Hold[T](m.c, m.wd, dst)
	if err != nil {
		return err
	}
	for i := range s.Slice {
		s.Slice[i] = fill(i)
	}
	other := encode[T](99)
	for i := range d.Slice {
		d.Slice[i] = other
	}
	if err := call(d.Vec, s.Vec); err != nil {
		return fmt.Errorf("%s of %d from %v to %v: %w", what, m.n, m.ws, m.wd, err)
	}
	if want != nil {
		for i := range d.Slice {
			if d.Slice[i] != want(i) {
				return conform.Fail(m.c, "%s of %d, root %d, from %v to %v: element %d is %v, not %v (%s)", what, m.n, m.root, m.ws,
					m.wd, i, d.Slice[i], want(i), m.c.LastOp().String())
			}
		}
	}
	for i := range s.Slice {
		if s.Slice[i] != fill(i) {
			return conform.Fail(m.c, "%s of %d: source element %d was changed", what, m.n, i)
		}
	}
	return errors.Join(s.Free(), d.Free())
}

// runInPlace holds one buffer of total elements, fills those from lo to hi, makes the call, and checks those from check
// to end.
func (m *mover[T]) runInPlace(what string, total, lo, hi int, fill func(i int) T, call func(v ubcoll.Vec) error,
	check, end int, want func(i int) T) error {
	b, err := conform.Hold[T](m.c, m.ws, total)
	if err != nil {
		return err
	}
	other := encode[T](99)
	for i := range b.Slice {
		b.Slice[i] = other
		if i >= lo && i < hi {
			b.Slice[i] = fill(i)
		}
	}
	if err := call(b.Vec); err != nil {
		return fmt.Errorf("%s in place of %d: %w", what, m.n, err)
	}
	for i := check; i < end; i++ {
		if b.Slice[i] != want(i) {
			return conform.Fail(m.c, "%s in place of %d, root %d, %v: element %d is %v, not %v (%s)", what, m.n, m.root, m.ws, i,
				b.Slice[i], want(i), m.c.LastOp().String())
		}
	}
	return b.Free()
}

func (m *mover[T]) reduceScatter(op ubcoll.Op) error {
	me, p := m.c.Rank(), m.c.Size()
	fill := func(i int) T { return m.val(me, i) }
	if m.inPlace {
		return m.runInPlace("reduce-scatter", m.n*p, 0, m.n*p, fill, func(v ubcoll.Vec) error {
			return coll.ReduceScatter(m.ctx, m.c, v.Slice(me*m.n, me*m.n+m.n), v, op)
		}, me*m.n, me*m.n+m.n, m.expect(op))
	}
	want := m.expect(op)
	return m.run("reduce-scatter", m.n*p, m.n, fill, func(d, s ubcoll.Vec) error {
		return coll.ReduceScatter(m.ctx, m.c, d, s, op)
	}, func(i int) T { return want(me*m.n + i) })
}

func (m *mover[T]) reduce(op ubcoll.Op) error {
	me := m.c.Rank()
	fill, want := func(i int) T { return m.val(me, i) }, m.expect(op)
	if m.inPlace && me == m.root {
		return m.runInPlace("reduce", m.n, 0, m.n, fill, func(v ubcoll.Vec) error {
			return coll.Reduce(m.ctx, m.c, v, v, op, m.root)
		}, 0, m.n, want)
	}
	if me != m.root {
		want = nil
	}
	return m.run("reduce", m.n, m.n, fill, func(d, s ubcoll.Vec) error {
		if me != m.root {
			d = ubcoll.Vec{}
		}
		return coll.Reduce(m.ctx, m.c, d, s, op, m.root)
	}, want)
}

func (m *mover[T]) preMulSum() error {
	want := pattern(m.n, func(i int) T {
		var sum float64
		for r := range m.c.Size() {
			sum += float64(1+r%2) * value(ubcoll.Sum, r, i, m.salt)
		}
		return encode[T](sum)
	})
	return m.run("premultiplied sum", m.n, m.n, func(i int) T { return m.val(m.c.Rank(), i) }, func(d, s ubcoll.Vec) error {
		return coll.AllReduce(m.ctx, m.c, d, s, ubcoll.PreMulSum(float64(1+m.c.Rank()%2)))
	}, func(i int) T { return want[i%period] })
}

func (m *mover[T]) allGather() error {
	me, p := m.c.Rank(), m.c.Size()
	want := func(i int) T { return m.val(i/m.n, i%m.n) }
	if m.inPlace && m.n > 0 {
		return m.runInPlace("all-gather", m.n*p, me*m.n, me*m.n+m.n, func(i int) T { return m.val(me, i-me*m.n) },
			func(v ubcoll.Vec) error {
				return coll.AllGather(m.ctx, m.c, v, v.Slice(me*m.n, me*m.n+m.n))
			}, 0, m.n*p, want)
	}
	return m.run("all-gather", m.n, m.n*p, func(i int) T { return m.val(me, i) }, func(d, s ubcoll.Vec) error {
		return coll.AllGather(m.ctx, m.c, d, s)
	}, want)
}

func (m *mover[T]) gather() error {
	me, p := m.c.Rank(), m.c.Size()
	want := func(i int) T { return m.val(i/m.n, i%m.n) }
	if m.inPlace && me == m.root && m.n > 0 {
		return m.runInPlace("gather", m.n*p, me*m.n, me*m.n+m.n, func(i int) T { return m.val(me, i-me*m.n) },
			func(v ubcoll.Vec) error {
				return coll.Gather(m.ctx, m.c, v, v.Slice(me*m.n, me*m.n+m.n), m.root)
			}, 0, m.n*p, want)
	}
	dst := m.n * p
	if me != m.root {
		dst, want = 0, nil
	}
	return m.run("gather", m.n, dst, func(i int) T { return m.val(me, i) }, func(d, s ubcoll.Vec) error {
		return coll.Gather(m.ctx, m.c, d, s, m.root)
	}, want)
}

func (m *mover[T]) scatter() error {
	me, p := m.c.Rank(), m.c.Size()
	fill := func(i int) T { return m.val(m.root, i) }
	if m.inPlace && me == m.root {
		return m.runInPlace("scatter", m.n*p, 0, m.n*p, fill, func(v ubcoll.Vec) error {
			return coll.Scatter(m.ctx, m.c, v.Slice(me*m.n, me*m.n+m.n), v, m.root)
		}, 0, m.n*p, fill)
	}
	src := m.n * p
	if me != m.root {
		src = 0
	}
	return m.run("scatter", src, m.n, fill, func(d, s ubcoll.Vec) error {
		return coll.Scatter(m.ctx, m.c, d, s, m.root)
	}, func(i int) T { return m.val(m.root, me*m.n+i) })
}

func (m *mover[T]) broadcast() error {
	want := func(i int) T { return m.val(m.root, i) }
	hi := 0
	if m.c.Rank() == m.root {
		hi = m.n
	}
	return m.runInPlace("broadcast", m.n, 0, hi, want, func(v ubcoll.Vec) error {
		return coll.Broadcast(m.ctx, m.c, v, m.root)
	}, 0, m.n, want)
}

func (m *mover[T]) allToAll() error {
	me, p := m.c.Rank(), m.c.Size()
	return m.run("all-to-all", m.n*p, m.n*p, func(i int) T { return m.val(me, i) }, func(d, s ubcoll.Vec) error {
		return coll.AllToAll(m.ctx, m.c, d, s)
	}, func(i int) T { return m.val(i/m.n, me*m.n+i%m.n) })
}

// find returns the rank, and the place in its part, of element i of parts in a row.
func find(i int, counts []int) (rank, at int) {
	for r, n := range counts {
		if i < n {
			return r, i
		}
		i -= n
	}
	return -1, 0
}

func total(counts []int) (n int) {
	for _, k := range counts {
		n += k
	}
	return n
}

// allToAllV sends counts[s*size+d] elements from s to d.
func (m *mover[T]) allToAllV(counts []int) error {
	me, p := m.c.Rank(), m.c.Size()
	send, recv := counts[me*p:me*p+p], make([]int, p)
	for s := range recv {
		recv[s] = counts[s*p+me]
	}
	return m.run("all-to-all-v", total(send), total(recv), func(i int) T {
		d, at := find(i, send)
		return m.val(me*p+d, at)
	}, func(d, s ubcoll.Vec) error {
		return coll.AllToAllV(m.ctx, m.c, d, recv, s, send)
	}, func(i int) T {
		s, at := find(i, recv)
		return m.val(s*p+me, at)
	})
}

func (m *mover[T]) allGatherV(counts []int) error {
	me, p := m.c.Rank(), m.c.Size()
	return m.run("all-gather-v", counts[me], total(counts[:p]), func(i int) T { return m.val(me, i) },
		func(d, s ubcoll.Vec) error { return coll.AllGatherV(m.ctx, m.c, d, counts[:p], s) },
		func(i int) T {
			r, at := find(i, counts[:p])
			return m.val(r, at)
		})
}

func (m *mover[T]) gatherV(counts []int) error {
	me, p := m.c.Rank(), m.c.Size()
	dst := total(counts[:p])
	want := func(i int) T {
		r, at := find(i, counts[:p])
		return m.val(r, at)
	}
	if me != m.root {
		dst, want = 0, nil
	}
	return m.run("gather-v", counts[me], dst, func(i int) T { return m.val(me, i) },
		func(d, s ubcoll.Vec) error { return coll.GatherV(m.ctx, m.c, d, counts[:p], s, m.root) }, want)
}

func (m *mover[T]) scatterV(counts []int) error {
	me, p := m.c.Rank(), m.c.Size()
	src := total(counts[:p])
	if me != m.root {
		src = 0
	}
	return m.run("scatter-v", src, counts[me], func(i int) T {
		r, at := find(i, counts[:p])
		return m.val(r, at)
	}, func(d, s ubcoll.Vec) error { return coll.ScatterV(m.ctx, m.c, d, s, counts[:p], m.root) },
		func(i int) T { return m.val(me, i) })
}

// movesBad makes wrong calls of these operations.
func movesBad(ctx context.Context, c *ubcoll.Comm) error {
	if c.Size() == 1 {
		d, s := ubcoll.Of(make([]int32, 4)), ubcoll.Of(make([]int32, 8))
		if err := coll.AllToAllV(ctx, c, d, []int{4}, s, []int{8}); !errors.Is(err, ubcoll.ErrMismatch) {
			return conform.Fail(c, "more to itself than it expects: %v", err)
		}
		return nil
	}
	p := c.Size()
	x, y := make([]int32, 10*p), make([]int32, 10*p)
	ten := make([]int, p)
	for i := range ten {
		ten[i] = 10
	}
	odd := append([]int(nil), ten...)
	if c.Rank() == p-1 {
		odd[0] = 9
	}
	src := ubcoll.Of(x)
	recvTotal := total(odd)
	for _, k := range []struct {
		name string
		err  error
		want error
	}{
		{"counts differ", coll.AllToAllV(ctx, c, ubcoll.Of(y[:recvTotal]), odd, src, ten), ubcoll.ErrMismatch},
		{"root differs", coll.Broadcast(ctx, c, src, c.Rank()/(p-1)), ubcoll.ErrMismatch},
		{"root out of range", coll.Broadcast(ctx, c, src, p), ubcoll.ErrArgument},
		{"all-to-all in place", coll.AllToAll(ctx, c, src, src), ubcoll.ErrArgument},
		{"all-gather too short", coll.AllGather(ctx, c, ubcoll.Of(y[:10]), ubcoll.Of(x[:10])), ubcoll.ErrArgument},
		{"too few counts", coll.AllGatherV(ctx, c, ubcoll.Of(y), ten[:1], ubcoll.Of(x[:10])), ubcoll.ErrArgument},
	} {
		if !errors.Is(k.err, k.want) {
			return conform.Fail(c, "%s: %v, not %v", k.name, k.err, k.want)
		}
	}
	return coll.Barrier(ctx, c)
}
