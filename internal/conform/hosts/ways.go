package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/graph"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
)

// batch is a set of operations; check checks the last ones after all are over.
type batch struct {
	checks []func() error
	text   string
}

// add makes a random operation by way of c.
func (b *batch) add(ctx context.Context, c *ubcoll.Comm, all, mine *rand.Rand) error {
	types := dtype.All()
	t := types[all.IntN(len(types))]
	switch all.IntN(8) {
	case 0:
		b.text += " barrier;"
		return coll.Barrier(ctx, c)
	case 1, 2, 3, 4:
		rs := reductions(t, c.Size())
		k := newBlocks(all, c.Size(), blockKinds[all.IntN(len(blockKinds))], rs[all.IntN(len(rs))], small(all, t.Size()))
		b.text += fmt.Sprintf(" %v;", k)
		if err := k.prepare(c, func() conform.Where { return anywhere(mine) }); err != nil {
			return err
		}
		b.checks = append(b.checks, func() error { return errors.Join(k.check(c), k.free()) })
		return k.call(ctx, c)
	case 5:
		k := newBroadcast(all, c.Size(), t, small(all, t.Size()), all.IntN(c.Size()))
		b.text += fmt.Sprintf(" %v;", &k)
		m, err := k.prepare(c, mine)
		if err != nil {
			return err
		}
		b.checks = append(b.checks, func() error { return k.check(c, m) })
		return coll.Broadcast(ctx, c, m.vec(), k.root)
	}
	rs := reductions(t, c.Size())
	k := rs[all.IntN(len(rs))]
	k.Seed, k.n, k.inPlace = all.Uint64(), small(all, t.Size()), all.IntN(2) == 0
	b.text += fmt.Sprintf(" %v;", &k)
	src, dst, err := k.prepare(c, mine)
	if err != nil {
		return err
	}
	b.checks = append(b.checks, func() error { return k.check(c, src, dst) })
	return coll.AllReduce(ctx, c, dst.vec(), src.vec(), k.op)
}

// String lists the operations.
func (b *batch) String() string { return b.text }

// check makes all checks.
func (b *batch) check() error {
	var errs []error
	for _, k := range b.checks {
		errs = append(errs, k())
	}
	return errors.Join(errs...)
}

// Streams queues operations on two streams, with blocking ones in between.
func Streams(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 21)
	for range 4 {
		var on [3]*ubcoll.Comm
		var streams [2]*ubcoll.Stream
		on[2] = c
		for i := range streams {
			s, err := ubcoll.NewStream(ubcoll.Host)
			if err != nil {
				return err
			}
			streams[i], on[i] = s, c.On(s)
		}
		b := &batch{}
		var err error
		for i := 0; i < 12 && err == nil; i++ {
			err = b.add(ctx, on[all.IntN(len(on))], all, mine)
		}
		for _, s := range streams {
			err = errors.Join(err, s.Sync(ctx), s.Close())
		}
		if err == nil {
			err = b.check()
		}
		if err != nil {
			return fail(c, b, err)
		}
	}
	return nil
}

// Groups does operations as one group, blocking and on a stream.
func Groups(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 22)
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	for k := range 6 {
		on := c
		if k%2 == 1 {
			on = c.On(s)
		}
		b := &batch{}
		err := ubcoll.Group(ctx, on, func(g *ubcoll.Comm) error {
			for range 1 + all.IntN(6) {
				if err := b.add(ctx, g, all, mine); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			err = testkit.InOrder(func() error { return s.Sync(ctx) }, b.check)
		}
		if err != nil {
			return fail(c, b, err)
		}
	}
	return s.Close()
}

// Graphs captures operations and launches them with other data each time. Captures that differ between ranks are
// refused on all.
func Graphs(ctx context.Context, c *ubcoll.Comm) error {
	all, _ := draws(c, 23)
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	for k := range 4 {
		n, root, ranks := small(all, 8)+1, all.IntN(c.Size()), int64(c.Size())
		sum, err1 := ubcoll.Alloc[int64](c, ubcoll.Host, n)
		max, err2 := ubcoll.Alloc[int64](c, ubcoll.Host, n)
		from, err3 := ubcoll.Alloc[int64](c, ubcoll.Host, n)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		on := c
		if k%2 == 1 {
			on = c.On(s)
		}
		g, err := graph.Capture(ctx, on, func(v *ubcoll.Comm) error {
			return errors.Join(coll.AllReduce(ctx, v, max.Vec(), sum.Vec(), ubcoll.Max), coll.Barrier(ctx, v),
				coll.AllReduce(ctx, v, sum.Vec(), sum.Vec(), ubcoll.Sum), coll.Broadcast(ctx, v, from.Vec(), root))
		})
		if err != nil {
			return conform.Fail(c, "capture: %w", err)
		}
		for launch := range int64(3) {
			for i := range n {
				sum.Slice()[i] = int64(c.Rank()) + launch*int64(i)
				from.Slice()[i] = 100*int64(c.Rank()) + launch
			}
			if err := testkit.InOrder(
				func() error { return g.Launch(ctx) },
				func() error { return s.Sync(ctx) }); err != nil {
				return conform.Fail(c, "launch: %w", err)
			}
			for i := range n {
				got := [3]int64{sum.Slice()[i], max.Slice()[i], from.Slice()[i]}
				want := [3]int64{ranks*(ranks-1)/2 + ranks*launch*int64(i), ranks - 1 + launch*int64(i), 100*int64(root) + launch}
				if got != want {
					return conform.Fail(c, "launch %d of a graph of %d elements: %v, not %v", launch, n, got, want)
				}
			}
		}
		if err := errors.Join(g.Close(), sum.Free(), max.Free(), from.Free()); err != nil {
			return err
		}
	}
	if err := testkit.InOrder(
		func() error { return blockGraphs(ctx, c, all, s) },
		func() error { return unlike(ctx, c, all) }); err != nil {
		return err
	}
	return s.Close()
}

// blockGraphs is Graphs with the collectives whose data consist of blocks. All-to-alls have other counts in each launch, the
// others, whose buffers say how long the blocks are, other data. Counts of one rank that do not fit are refused on all.
func blockGraphs(ctx context.Context, c *ubcoll.Comm, all *rand.Rand, s *ubcoll.Stream) error {
	types := dtype.All()
	for k := range 6 {
		var calls []*blocks
		for _, kind := range append([]string{"all_to_all_v"}, blockKinds[k%2*5:][:5]...) {
			t := types[all.IntN(len(types))]
			rs := reductions(t, c.Size())
			b := newBlocks(all, c.Size(), kind, rs[all.IntN(len(rs))], small(all, t.Size()))
			if err := b.prepare(c, func() conform.Where { return conform.Alloced }); err != nil {
				return fail(c, b, err)
			}
			calls = append(calls, b)
		}
		on := c
		if k%3 == 1 {
			on = c.On(s)
		}
		g, err := graph.Capture(ctx, on, func(v *ubcoll.Comm) error {
			for _, b := range calls {
				if err := b.call(ctx, v); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return conform.Fail(c, "capture of %v: %w", calls, err)
		}
		launch := func() error {
			return errors.Join(g.Launch(ctx), s.Sync(ctx))
		}
		for range 4 {
			for _, b := range calls {
				if b.Seed = all.Uint64(); b.kind == "all_to_all_v" {
					b.recount(all)
				}
				b.fill(c.Rank())
			}
			if err := launch(); err != nil {
				return conform.Fail(c, "launch of %v: %w", calls, err)
			}
			for _, b := range calls {
				if err := b.check(c); err != nil {
					return conform.Fail(c, "launch of %v: %w", b, err)
				}
			}
		}
		first := calls[0]
		odd := all.IntN(c.Size())
		if c.Rank() == odd {
			first.comes[all.IntN(c.Size())] = 1 << 30
		} else {
			all.IntN(c.Size())
		}
		if err := launch(); !errors.Is(err, ubcoll.ErrArgument) || c.Err() != nil {
			return conform.Fail(c, "launch of %v with a count that does not fit: %v, %w", first, err, c.Err())
		}
		first.fill(c.Rank())
		if c.Size() > 1 { // one more than rank odd expects, or one less
			other := (odd + 1) % c.Size()
			n := first.count(other, odd) ^ 1
			if c.Rank() == odd {
				first.comes[other] = n
			}
			room := 0
			for s := range c.Size() {
				room += first.fit[s][odd] - first.count(s, odd)
			}
			if n < first.count(other, odd) || room > 0 {
				text := fmt.Sprintf("rank %d expects %d elements from rank %d, which sends %d", odd, n, other, first.count(other, odd))
				if err := same(ctx, c, launch(), ubcoll.ErrMismatch, text); err != nil {
					return conform.Fail(c, "launch of %v with counts that differ: %w", first, err)
				}
			}
		}
		errs := []error{g.Close()}
		for _, b := range calls {
			errs = append(errs, b.free())
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// unlike captures something else on one rank.
func unlike(ctx context.Context, c *ubcoll.Comm, all *rand.Rand) error {
	if c.Size() == 1 {
		return nil
	}
	b, err := ubcoll.Alloc[int32](c, ubcoll.Host, 8)
	if err != nil {
		return err
	}
	odd, at := 1+all.IntN(c.Size()-1), all.IntN(5)
	_, err = graph.Capture(ctx, c, func(v *ubcoll.Comm) error {
		for i := range 6 {
			op := ubcoll.Sum
			if i == at && c.Rank() == odd {
				op = ubcoll.Max
			}
			if err := coll.AllReduce(ctx, v, b.Vec(), b.Vec(), op); err != nil {
				return err
			}
		}
		return nil
	})
	want := fmt.Sprintf("call %d is all_reduce(count 8, int32, sum) on rank 0 and all_reduce(count 8, int32, max) on rank %d",
		at, odd)
	if err := same(ctx, c, err, ubcoll.ErrMismatch, want); err != nil {
		return conform.Fail(c, "a capture that differs: %w", err)
	}
	return b.Free()
}
