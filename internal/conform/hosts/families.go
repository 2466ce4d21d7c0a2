package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Families splits and duplicates the communicator in all ways, and uses parents and children together.
func Families(ctx context.Context, c *ubcoll.Comm) error {
	return testkit.InOrder(
		func() error { return byHost(ctx, c) },
		func() error { return across(ctx, c) },
		func() error { return alone(ctx, c) },
		func() error { return random(ctx, c) },
		func() error { return generations(ctx, c) },
		func() error { return atOnce(ctx, c) })
}

// host identifies this rank's host by the first rank there.
func host(c *ubcoll.Comm) int {
	for r := range c.Size() {
		if c.Hostname(r) == c.Hostname(c.Rank()) {
			return r
		}
	}
	return -1
}

// byHost makes a communicator for each host, which can do everything.
func byHost(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Split(ctx, host(c), 0)
	if err != nil {
		return conform.Fail(c, "split by host: %w", err)
	}
	if d.Rank() != c.LocalRank() || d.Size() != c.LocalSize() || Spans(d) || d.Hostname(0) != c.Hostname(c.Rank()) {
		return conform.Fail(c, "split by host: rank %d of %d on %s", d.Rank(), d.Size(), d.Hostname(0))
	}
	// Waits in one communicator move the messages of the other.
	all := make([]int32, d.Size())
	if err := coll.AllGather(ctx, d, ubcoll.Of(all), ubcoll.Of([]int32{int32(c.Rank())})); err != nil {
		return err
	}
	for i, r := range all {
		if c.Hostname(int(r)) != c.Hostname(c.Rank()) || i > 0 && r < all[i-1] {
			return conform.Fail(c, "split by host: ranks %v", all)
		}
	}
	if err := around(ctx, c, d); err != nil {
		return err
	}
	if err := memoryOf(ctx, c, d); err != nil {
		return err
	}
	n := int64(c.Size())
	return errors.Join(conform.SumOf(ctx, c, int64(c.Rank()), n*(n-1)/2), d.Close())
}

// around sends around a child on one host while a collective of the parent waits. The parent has allocated the memory
// of the sends.
func around(ctx context.Context, c, d *ubcoll.Comm) error {
	if d.Size() < 2 {
		return conform.SumOf(ctx, c, 1, int64(c.Size()))
	}
	next, last := conform.Ring(d)
	const n = 300_000
	src, dst := ubcoll.Of(conform.Pattern(d.Rank(), 1, n)), make([]byte, n)
	b, err := ubcoll.Alloc[byte](c, ubcoll.Host, n)
	if err != nil {
		return err
	}
	if err := b.CopyFrom(ctx, conform.Pattern(d.Rank(), 1, n)); err != nil {
		return err
	}
	s, err := p2p.ISend(ctx, d, next, b.Vec())
	if err != nil {
		return err
	}
	r, err := p2p.IRecv(ctx, d, last, ubcoll.Of(dst))
	if err != nil {
		return err
	}
	// No rank waits for the messages yet; they move anyway.
	if err := conform.SumOf(ctx, c, 1, int64(c.Size())); err != nil {
		return err
	}
	if err := errors.Join(s.Wait(ctx), r.Wait(ctx), b.Free()); err != nil {
		return err
	}
	if !slices.Equal(dst, conform.Pattern(last, 1, n)) {
		return conform.Fail(c, "a message of a child on one host: wrong data")
	}
	_, err = p2p.SendRecv(ctx, d, last, ubcoll.Of(dst), next, src)
	return err
}

// memoryOf registers memory with the parent, and uses it with a child on one host: a window, a handle, a channel. The
// handle is useless on another host.
func memoryOf(ctx context.Context, c, d *ubcoll.Comm) error {
	g, err := conform.NewRegion(c, 4096)
	if err != nil {
		return err
	}
	w, err := d.RegisterWindow(ctx, g.Buf.Vec(), ubcoll.WindowDefault)
	if err != nil {
		return err
	}
	h, err := g.Reg.MarshalBinary()
	if err != nil {
		return err
	}
	const room = 512
	all := make([]byte, room*c.Size())
	copy(all[room*c.Rank():], h)
	if err := coll.AllReduce(ctx, c, ubcoll.Of(all), ubcoll.Of(all), ubcoll.Sum); err != nil {
		return err
	}
	for r := range c.Size() {
		m, err := d.Import(all[room*r:][:len(h)])
		switch here := c.Hostname(r) == c.Hostname(c.Rank()); {
		case r == c.Rank() && errors.Is(err, ubcoll.ErrArgument):
		case !here && errors.Is(err, ubcoll.ErrStale): // its maker is no rank of d
		case here && err == nil:
			err = m.Close()
			fallthrough
		default:
			if err != nil || r == c.Rank() || !here {
				return conform.Fail(c, "import of the handle of rank %d on %s: %v", r, c.Hostname(r), err)
			}
		}
	}
	if p := conform.Partner(d); p >= 0 {
		ch, err := p2p.Connect(ctx, d, p, g.Reg)
		if err != nil {
			return err
		}
		if err := errors.Join(testkit.InOrder(
			func() error { return ch.PutWithSignal(ctx, 2048, 0, 1024) },
			func() error { return ch.Wait(ctx) }), ch.Close()); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), coll.Barrier(ctx, d), g.Free())
}

// across makes communicators with one rank of each host, in reverse order.
func across(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Split(ctx, c.LocalRank(), -c.Rank())
	if err != nil {
		return conform.Fail(c, "split across: %w", err)
	}
	if d.LocalSize() != 1 || d.LocalRank() != 0 {
		return conform.Fail(c, "split across: rank %d of %d of the host", d.LocalRank(), d.LocalSize())
	}
	all, mine := draws(d, 31) // the same in all of these communicators
	r := reductions(1, d.Size())[0]
	r.Seed, r.n = all.Uint64(), 70_001
	b := newBroadcast(all, d.Size(), 8, 5000, d.Size()-1)
	return errors.Join(testkit.InOrder(
		func() error { return Places(ctx, d) },
		func() error { return r.run(ctx, d, mine) },
		func() error { return b.run(ctx, d, mine) }), d.Close())
}

// alone makes a communicator of each single rank, and none for some ranks.
func alone(ctx context.Context, c *ubcoll.Comm) error {
	d, err := c.Split(ctx, c.Rank(), 5)
	if err != nil {
		return err
	}
	x := []int32{0}
	if err := coll.AllGather(ctx, d, ubcoll.Of(x), ubcoll.Of([]int32{7})); err != nil || x[0] != 7 || d.Size() != 1 {
		return conform.Fail(c, "a communicator of one rank: %d of %d: %v", x[0], d.Size(), err)
	}
	color := 1
	if c.Rank()%2 == 1 {
		color = ubcoll.NoColor
	}
	e, err := c.Split(ctx, color, 0)
	if err != nil || (e == nil) != (color < 0) {
		return conform.Fail(c, "a split without some ranks gave %v, %v", e, err)
	}
	if e != nil {
		if err := errors.Join(conform.SumOf(ctx, e, 1, int64((c.Size()+1)/2)), e.Close()); err != nil {
			return err
		}
	}
	none, err := c.Split(ctx, ubcoll.NoColor, 0)
	if err != nil || none != nil {
		return conform.Fail(c, "a split without any rank gave %v, %v", none, err)
	}
	return d.Close()
}

// random draws colors and keys.
func random(ctx context.Context, c *ubcoll.Comm) error {
	all, _ := draws(c, 32)
	for k := range 8 {
		colors, keys := make([]int, c.Size()), make([]int, c.Size())
		for r := range colors {
			colors[r], keys[r] = all.IntN(3), all.IntN(4)
		}
		var want []int // the ranks with this rank's color
		for r := range colors {
			if colors[r] == colors[c.Rank()] {
				want = append(want, r)
			}
		}
		slices.SortStableFunc(want, func(a, b int) int { return keys[a] - keys[b] })
		d, err := c.Split(ctx, colors[c.Rank()], keys[c.Rank()])
		if err != nil {
			return conform.Fail(c, "split %d: %w", k, err)
		}
		rows, err := share(ctx, d, uint64(c.Rank()))
		if err != nil {
			return conform.Fail(c, "split %d: %w", k, err)
		}
		for i, r := range want {
			if len(rows) != len(want) || rows[i][0] != uint64(r) || d.Hostname(i) != c.Hostname(r) {
				return conform.Fail(c, "split %d: ranks %v, not %v", k, rows, want)
			}
		}
		if err := errors.Join(testkit.InOrder(
			func() error { return Places(ctx, d) },
			func() error { return spread(ctx, d) }), d.Close()); err != nil {
			return conform.Fail(c, "split %d: %w", k, err)
		}
	}
	return nil
}

// spread makes each rank of a communicator the root once.
func spread(ctx context.Context, c *ubcoll.Comm) error {
	for root := range c.Size() {
		b := newBroadcast(rand.New(rand.NewPCG(uint64(root), 1)), c.Size(), 6, 1000*root, root)
		if err := b.run(ctx, c, rand.New(rand.NewPCG(uint64(c.Rank()), 2))); err != nil {
			return err
		}
	}
	return nil
}

// generations lets children outlive their parents.
func generations(ctx context.Context, c *ubcoll.Comm) error {
	n := int64(c.Size())
	d, err := c.Dup(ctx)
	if err != nil {
		return err
	}
	e, err := d.Split(ctx, 0, -c.Rank())
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	f, err := e.Dup(ctx)
	if err != nil {
		return err
	}
	for _, x := range []*ubcoll.Comm{f, c, e} {
		if err := conform.SumOf(ctx, x, int64(x.Rank()), n*(n-1)/2); err != nil {
			return err
		}
	}
	if err := e.Close(); err != nil {
		return err
	}
	return errors.Join(testkit.InOrder(
		func() error { return Places(ctx, f) },
		func() error { return conform.SumOf(ctx, f, 1, n) }), f.Close())
}

// atOnce uses communicators from several goroutines: they share the links between hosts, and do not wait for each
// other.
func atOnce(ctx context.Context, c *ubcoll.Comm) error {
	comms := []*ubcoll.Comm{c}
	for k := range 3 {
		d, err := c.Split(ctx, 0, k*c.Rank())
		if err != nil {
			return err
		}
		comms = append(comms, d)
	}
	errs := make([]error, len(comms))
	var wg sync.WaitGroup
	for i, x := range comms {
		wg.Go(func() {
			all, mine := draws(x, 40+uint64(i))
			for k := 0; k < 12 && errs[i] == nil; k++ {
				b := &batch{}
				if errs[i] = b.add(ctx, x, all, mine); errs[i] == nil {
					errs[i] = b.check()
				}
				if errs[i] != nil {
					errs[i] = fmt.Errorf("communicator %d, call %d: %v %w", i, k, b, errs[i])
				}
			}
		})
	}
	wg.Wait()
	for _, x := range comms[1:] {
		errs = append(errs, x.Close())
	}
	return errors.Join(errs...)
}
