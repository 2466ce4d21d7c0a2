package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/internal/conform"
)

// same checks that all ranks have the same error, that it wraps want, and that it has the text.
func same(ctx context.Context, c *ubcoll.Comm, err, want error, text string) error {
	e, ok := errors.AsType[*ubcoll.Error](err)
	if !ok || !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("%v, not %v with %q", err, want, text)
	}
	rows, lost := share(ctx, c, hash([]byte(e.Err.Error())), uint64(e.Peer+1))
	if lost != nil {
		return lost
	}
	for r, row := range rows {
		if row[0] != rows[c.Rank()][0] || row[1] != rows[c.Rank()][1] {
			return fmt.Errorf("%w, and rank %d has another error, about rank %d", err, r, int(row[1])-1)
		}
	}
	return nil
}

// call is a call that a rank makes.
type call struct {
	kind kind
	typ  dtype.Type
	op   ubcoll.Op
	n    int
	root int
	bad  fault
}

type kind int

const (
	barriers kind = iota
	reduces
	broadcasts
	ofBlocks // and those behind it: blockKinds
)

var kinds = int(ofBlocks) + len(blockKinds)

// block returns the call as one of blockKinds, of blocks that all have as many elements as this rank says; or nil.
func (k *call) block(ranks int) *blocks {
	if k.kind < ofBlocks {
		return nil
	}
	b := &blocks{kind: blockKinds[k.kind-ofBlocks], op: k.op, n: k.n, root: k.root}
	b.Type, b.Ranks = k.typ, ranks
	if b.vectors() {
		b.counts = slices.Repeat([][]int{slices.Repeat([]int{k.n}, ranks)}, ranks)
	}
	return b
}

// fault is a mistake in a rank's arguments.
type fault int

const (
	nothing fault = iota
	short         // a destination that is too short
	overlapping
	noOp
	noRoot
	freed
	ended // a context that has ended
	faults
)

var sentinels = [faults]error{short: ubcoll.ErrArgument, overlapping: ubcoll.ErrArgument, noOp: ubcoll.ErrArgument,
	noRoot: ubcoll.ErrArgument, freed: ubcoll.ErrStale, ended: context.Canceled}

// signature is what all ranks must have in common.
func (k *call) signature() string {
	switch k.kind {
	case reduces:
		return fmt.Sprint("all_reduce", k.typ, k.op, k.n)
	case broadcasts:
		return fmt.Sprint("broadcast", k.typ, k.root, k.n)
	case barriers:
		return "barrier"
	}
	b := k.block(1)
	s := fmt.Sprint(b.kind, k.typ)
	if b.reduces() {
		s += fmt.Sprint(k.op)
	}
	if b.toRoot() || b.fromRoot() {
		s += fmt.Sprint(" root ", k.root)
	}
	if !b.vectors() {
		s += fmt.Sprint(" of ", k.n)
	}
	return s
}

func draw(all *rand.Rand, ranks int) call {
	t := dtype.Type(1 + all.IntN(int(dtype.Bool)-1)) // not bool, which lacks some operations
	ops := []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg, ubcoll.PreMulSum(2)}
	n := small(all, t.Size()) + 3 // so that parts of it can overlap
	return call{kind: kind(all.IntN(kinds)), typ: t, op: ops[all.IntN(len(ops))], n: n, root: all.IntN(ranks)}
}

// change turns it into another call, or makes a mistake in it.
func (k *call) change(all *rand.Rand, ranks int, blocking bool) {
	other := draw(all, ranks)
	switch all.IntN(7) {
	case 0:
		k.kind = other.kind
	case 1:
		k.typ = other.typ
	case 2:
		k.op = other.op
	case 3:
		k.n = other.n
	case 4:
		k.root = other.root
	default:
		for k.bad = fault(1 + all.IntN(int(faults)-1)); !k.has(k.bad) || k.bad == ended && !blocking; {
			k.bad = fault(1 + all.IntN(int(faults)-1))
			if k.kind == barriers {
				k.kind = reduces
			}
		}
	}
}

// has reports whether the call can have that mistake.
func (k *call) has(bad fault) bool {
	switch k.kind {
	case reduces:
		return bad != noRoot
	case broadcasts:
		return bad == noRoot || bad == freed || bad == ended
	case barriers:
		return bad == ended
	}
	b := k.block(1)
	switch bad {
	case noOp:
		return b.reduces()
	case noRoot:
		return b.toRoot() || b.fromRoot()
	case overlapping, short: // not every rank has both buffers
		return !b.toRoot() && !b.fromRoot()
	case freed:
		return !b.toRoot()
	}
	return true
}

func (k *call) do(ctx context.Context, c *ubcoll.Comm, mine *rand.Rand) (free func() error, err error) {
	b, n, m := k.block(c.Size()), k.n, k.n
	if b != nil {
		n, m = b.lengths(c.Rank())
	}
	src, err := hold(c, anywhere(mine), k.typ, n)
	if err != nil {
		return nil, err
	}
	dst, err := hold(c, anywhere(mine), k.typ, m)
	if err != nil {
		return nil, err
	}
	from, to, op, root := src.vec(), dst.vec(), k.op, k.root
	switch k.bad {
	case short:
		to = to.Slice(0, m-1)
	case overlapping:
		if b == nil {
			to, from = from.Slice(1, n), from.Slice(0, n-1)
			break
		}
		both := ubcoll.Of(make([]uint64, n+m)).As(dtype.Uint8) // one element is of both
		size := k.typ.Size()
		from, to = both.Slice(0, n*size).As(k.typ), both.Slice((n-1)*size, (n+m-1)*size).As(k.typ)
	case noOp:
		op = ubcoll.Op{}
	case noRoot:
		root = c.Size() + root
	case freed:
		gone, err := ubcoll.Alloc[uint64](c, ubcoll.Host, m)
		if err != nil {
			return nil, err
		}
		to = gone.Vec().As(dtype.Uint8).Slice(0, m*k.typ.Size()).As(k.typ)
		if err := gone.Free(); err != nil {
			return nil, err
		}
	case ended:
		gone, cancel := context.WithCancel(ctx)
		cancel()
		ctx = gone
	}
	switch k.kind {
	case barriers:
		err = coll.Barrier(ctx, c)
	case reduces:
		err = coll.AllReduce(ctx, c, to, from, op)
	case broadcasts:
		err = coll.Broadcast(ctx, c, to, root)
	default:
		b.from, b.to, b.op, b.root = from, to, op, root
		for range c.Size() {
			b.sends, b.comes = append(b.sends, k.n), append(b.comes, k.n)
		}
		err = b.call(ctx, c)
	}
	return func() error { return errors.Join(src.free(), dst.free()) }, err
}

// expectation is the result of the calls of all ranks: either no rank has an error, or all have one about the same
// rank, except that the rank that refused has its own.
type expectation struct {
	about int // -1: all is well
	err   error
	text  string
}

func expect(calls []call) expectation {
	count, first := map[string]int{}, map[string]int{}
	for r := range calls {
		if bad := calls[r].bad; bad != nothing {
			return expectation{r, sentinels[bad], fmt.Sprintf("rank %d refused", r)}
		}
		s := calls[r].signature()
		if count[s]++; count[s] == 1 {
			first[s] = r
		}
	}
	most := calls[0].signature()
	for s, n := range count {
		if n > count[most] || n == count[most] && first[s] < first[most] {
			most = s
		}
	}
	for r := range calls {
		if calls[r].signature() != most {
			return expectation{r, ubcoll.ErrMismatch, fmt.Sprintf("rank %d called ", r)}
		}
	}
	if b := calls[0].block(len(calls)); b != nil && b.vectors() {
		return b.expect(calls)
	}
	return expectation{about: -1}
}

// expect is the expectation of calls that may differ in their counts: an error about the first pair of ranks whose do.
func (b *blocks) expect(calls []call) expectation {
	for s := range calls {
		for d := range calls {
			if b.toRoot() && d != b.root || b.fromRoot() && s != b.root || calls[s].n == calls[d].n {
				continue
			}
			return expectation{d, ubcoll.ErrMismatch,
				fmt.Sprintf("rank %d expects %d elements from rank %d, which sends %d", d, calls[d].n, s, calls[s].n)}
		}
	}
	return expectation{about: -1}
}

// Wrong makes calls that differ on some ranks, or are wrong in themselves. All ranks get the same error, which names
// the same rank, and the communicator works as before. CONFORM_MISMATCHES says how many calls.
func Wrong(ctx context.Context, c *ubcoll.Comm) error {
	rounds, err := conform.Number("CONFORM_MISMATCHES", 120)
	if err != nil || c.Size() == 1 {
		return err
	}
	all, mine := draws(c, 51)
	s, err := ubcoll.NewStream(ubcoll.Host)
	if err != nil {
		return err
	}
	for round := range rounds {
		way := all.IntN(3)
		base, calls := draw(all, c.Size()), make([]call, c.Size())
		for r := range calls {
			calls[r] = base
		}
		for _, r := range all.Perm(c.Size())[:1+all.IntN(c.Size())] {
			calls[r].change(all, c.Size(), way == 0)
		}
		var free func() error
		switch way {
		case 0:
			free, err = calls[c.Rank()].do(ctx, c, mine)
		case 1:
			if free, err = calls[c.Rank()].do(ctx, c.On(s), mine); err == nil {
				err = s.Sync(ctx)
			}
		case 2:
			err = ubcoll.Group(ctx, c, func(g *ubcoll.Comm) error {
				if err := coll.Barrier(ctx, g); err != nil {
					return err
				}
				free, err = calls[c.Rank()].do(ctx, g, mine)
				return err
			})
		}
		if bad := expect(calls).holds(ctx, c, calls, err); bad != nil {
			return conform.Fail(c, "round %d, way %d, calls %+v: %w", round, way, calls, bad)
		}
		n := int64(c.Size())
		if err := errors.Join(c.Err(), conform.SumOf(ctx, c, int64(c.Rank()), n*(n-1)/2)); err != nil {
			return conform.Fail(c, "after round %d, way %d, calls %+v: %w", round, way, calls, err)
		}
		if free != nil {
			if err := free(); err != nil {
				return err
			}
		}
	}
	return s.Close()
}

// holds checks this rank's error, and that all ranks that did not refuse have the same.
func (x expectation) holds(ctx context.Context, c *ubcoll.Comm, calls []call, err error) error {
	text, about := uint64(0), uint64(0)
	if e, ok := errors.AsType[*ubcoll.Error](err); ok {
		text, about = hash([]byte(e.Err.Error())), uint64(e.Peer+1)
	}
	own := calls[c.Rank()].bad
	var bad error
	switch {
	case x.about < 0 && err != nil:
		bad = fmt.Errorf("%w, and all called the same", err)
	case own != nothing && !errors.Is(err, sentinels[own]):
		bad = fmt.Errorf("%v, not %v of its own", err, sentinels[own])
	case own == nothing && x.about >= 0 && (!errors.Is(err, x.err) || !strings.Contains(err.Error(), x.text)):
		bad = fmt.Errorf("%v, not %v with %q", err, x.err, x.text)
	case own == nothing && x.about >= 0 && about != uint64(x.about+1):
		bad = fmt.Errorf("%w: it is about rank %d, not %d", err, int(about)-1, x.about)
	}
	if bad != nil {
		return bad
	}
	rows, lost := share(ctx, c, text, about)
	if lost != nil {
		return lost
	}
	for r, row := range rows {
		if own == nothing && calls[r].bad == nothing && (row[0] != text || row[1] != about) {
			return fmt.Errorf("%v, and rank %d has another error, about rank %d", err, r, int(row[1])-1)
		}
	}
	return nil
}
