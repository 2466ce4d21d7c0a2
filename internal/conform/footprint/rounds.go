package footprint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/p2p"
)

// Rounds splits and duplicates communicators, uses them in all ways, and closes them. Each rank closes in an order of
// its own, with or without closing first what was made with them. Afterwards there are as many allocations as before,
// and descriptors, mappings and memory have not grown.
func Rounds(ctx context.Context, c *ubcoll.Comm) error {
	rounds, err := conform.Number("CONFORM_ROUNDS", 300)
	if err != nil {
		return err
	}
	r := &childRounds{c: c, all: rand.New(rand.NewPCG(conform.Seed(), 9)),
		mine: rand.New(rand.NewPCG(conform.Seed(), 900+uint64(c.Rank())))}
	if err := r.run(ctx, 100); err != nil { // the first rounds have lasting costs
		return err
	}
	memory := c.Stats().Memory
	before, err := footprint()
	if err != nil {
		return err
	}
	if err := r.run(ctx, rounds); err != nil {
		return err
	}
	if after := c.Stats().Memory; after.Allocations != memory.Allocations || after.LiveBytes != memory.LiveBytes ||
		after.HeldBytes != memory.HeldBytes {
		return conform.Fail(c, "the heap: %+v before, %+v after", memory, after)
	}
	// The heap keeps a few arenas for later, with one descriptor each. Ranks may share the process.
	n := c.Size()
	before.fds, before.maps, before.kib = before.fds+4*n, before.maps+16*n, before.kib+n*32<<10
	return awaitFootprint(ctx, c, before)
}

type childRounds struct {
	c    *ubcoll.Comm
	all  *rand.Rand // the same on all ranks
	mine *rand.Rand
	open []*child
}

// child is a communicator and what was made with it. Everything but the communicator may be nil.
type child struct {
	d       *ubcoll.Comm
	buf     *ubcoll.Buffer[int64]
	reg     *ubcoll.Registration
	win     *ubcoll.Window
	channel *p2p.Channel
}

// run does some rounds, and closes what is open then.
func (r *childRounds) run(ctx context.Context, rounds int) error {
	for k := range rounds {
		if err := r.one(ctx); err != nil {
			return conform.Fail(r.c, "round %d: %w", k, err)
		}
		for len(r.open) > 5 || len(r.open) > 0 && r.mine.IntN(3) == 0 {
			if err := r.close(); err != nil {
				return conform.Fail(r.c, "round %d: %w", k, err)
			}
		}
	}
	for len(r.open) > 0 {
		if err := r.close(); err != nil {
			return conform.Fail(r.c, "closing: %w", err)
		}
	}
	if err := coll.Barrier(ctx, r.c); err != nil {
		return err
	}
	// Memory that a rank shares is released when the rank next frees something after all others have closed their part.
	b, err := ubcoll.Alloc[byte](r.c, ubcoll.Host, 1)
	if err != nil {
		return err
	}
	return b.Free()
}

func (r *childRounds) one(ctx context.Context) (err error) {
	k := &child{}
	if r.all.IntN(2) == 0 {
		k.d, err = r.c.Dup(ctx)
	} else {
		colors := r.all.IntN(3) // some splits leave the last rank out
		color := ubcoll.NoColor
		if colors == 0 || r.c.Rank() < r.c.Size()-1 {
			color = r.c.Rank() % max(colors, 1)
		}
		k.d, err = r.c.Split(ctx, color, (r.c.Rank()*7)%5)
	}
	what := r.all.Uint32()
	if err != nil || k.d == nil {
		return err
	}
	r.open = append(r.open, k)
	if k.buf, err = ubcoll.Alloc[int64](k.d, ubcoll.Host, 1000); err != nil {
		return err
	}
	if k.reg, err = k.d.RegisterBuffer(k.buf.Vec()); err != nil {
		return err
	}
	k.buf.Slice()[0] = int64(k.d.Rank())
	v := k.buf.Vec().Slice(0, 1)
	if err := coll.AllReduce(ctx, k.d, v, v, ubcoll.Sum); err != nil {
		return err
	}
	if n := int64(k.d.Size()); k.buf.Slice()[0] != n*(n-1)/2 {
		return fmt.Errorf("a child of %d: %d", n, k.buf.Slice()[0])
	}
	if what&1 != 0 {
		if err := conform.SumOf(ctx, k.d, 1, int64(k.d.Size())); err != nil {
			return err
		}
	}
	if what&2 != 0 {
		if k.win, err = k.d.RegisterWindow(ctx, k.buf.Vec(), 0); err != nil {
			return err
		}
		for p := range k.d.Size() {
			if err := testkit.InOrder(
				func() error { return k.win.Put(ctx, p, 800+8*k.d.Rank(), ubcoll.Of([]int64{7})) },
				func() error { return k.win.Signal(ctx, p) }); err != nil {
				return err
			}
		}
		for p := range k.d.Size() {
			if err := k.win.Wait(ctx, p); err != nil {
				return err
			}
			if k.buf.Slice()[100+p] != 7 {
				return fmt.Errorf("a put of %d", k.buf.Slice()[100+p])
			}
		}
	}
	right, left := conform.Ring(k.d)
	if what&4 != 0 {
		x, y := make([]int64, 3000), make([]int64, 3000)
		x[2999] = int64(k.d.Rank())
		if _, err := p2p.SendRecv(ctx, k.d, left, ubcoll.Of(y), right, ubcoll.Of(x)); err != nil {
			return err
		}
		if y[2999] != int64(left) {
			return fmt.Errorf("a message of %d", y[2999])
		}
	}
	if peer := conform.Partner(k.d); what&8 != 0 && peer >= 0 {
		if k.channel, err = p2p.Connect(ctx, k.d, peer, k.reg); err != nil {
			return err
		}
		return testkit.InOrder(
			func() error { return k.channel.PutWithSignal(ctx, 4000, 0, 800) },
			func() error { return k.channel.Wait(ctx) })
	}
	return nil
}

// close closes one of the open children.
func (r *childRounds) close() error {
	i := r.mine.IntN(len(r.open))
	k := r.open[i]
	r.open = append(r.open[:i], r.open[i+1:]...)
	acts := []func() error{k.d.Close}
	add := func(on bool, do func() error) {
		if on && r.mine.IntN(2) == 0 {
			acts = append(acts, do)
		}
	}
	add(true, k.reg.Close)
	add(k.win != nil, func() error { return k.win.Close() })
	add(k.channel != nil, func() error { return k.channel.Close() })
	r.mine.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	var errs []error
	for _, do := range acts {
		if err := do(); !errors.Is(err, ubcoll.ErrClosed) { // closed with its communicator
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, k.buf.Free())...)
}
