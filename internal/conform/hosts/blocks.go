package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// blockKinds are the collectives whose data consist of blocks.
var blockKinds = []string{"reduce_scatter", "reduce", "all_gather", "gather", "scatter", "all_to_all", "all_gather_v", "gather_v",
	"scatter_v", "all_to_all_v"}

// blocks is one of them. A rank's source is numbered element by element.
type blocks struct {
	verify.Data
	kind    string
	op      ubcoll.Op
	n, root int     // elements of a block
	counts  [][]int // or as many from each rank to each
	fit     [][]int // the counts that its buffers have room for
	inPlace bool

	src, dst      memory
	from, to      ubcoll.Vec
	input, output unsafe.Pointer
	sends, comes  []int // this rank's counts, which the operation reads
}

// newBlocks draws a call of this kind, of blocks of n elements, or with counts up to n.
func newBlocks(all *rand.Rand, ranks int, kind string, d reduction, n int) *blocks {
	b := &blocks{Data: d.Data, kind: kind, op: d.op, n: n, root: all.IntN(ranks), inPlace: all.IntN(2) == 0}
	b.Seed = all.Uint64()
	if !b.reduces() { // any bits
		b.Op, b.Average, b.Factor = cpu.Max, false, 0
	}
	b.recount(all)
	return b
}

// recount draws counts, if the operation has any. Those drawn first are the largest.
func (b *blocks) recount(all *rand.Rand) {
	if !b.vectors() {
		return
	}
	counts, few := make([][]int, b.Ranks), make([]int, b.Ranks)
	for r := range counts {
		counts[r], few[r] = make([]int, b.Ranks), all.IntN(b.n+1)
	}
	for s := range counts {
		for d := range counts[s] {
			switch b.kind {
			case "all_gather_v", "gather_v":
				counts[s][d] = few[s]
			case "scatter_v":
				counts[s][d] = few[d]
			default:
				if counts[s][d] = all.IntN(b.n + 1); b.fit != nil {
					counts[s][d] = all.IntN(b.fit[s][d] + 1)
				}
			}
		}
	}
	if b.counts = counts; b.fit == nil {
		b.fit = counts
	}
}

func (b *blocks) reduces() bool { return b.kind == "reduce_scatter" || b.kind == "reduce" }
func (b *blocks) vectors() bool { return strings.HasSuffix(b.kind, "_v") }
func (b *blocks) toRoot() bool {
	return b.kind == "reduce" || b.kind == "gather" || b.kind == "gather_v"
}
func (b *blocks) fromRoot() bool { return b.kind == "scatter" || b.kind == "scatter_v" }

// alike reports whether a rank sends the same block to all.
func (b *blocks) alike() bool {
	return b.kind == "reduce" || b.kind == "all_gather" || b.kind == "gather" || b.kind == "all_gather_v" || b.kind == "gather_v"
}

// String describes it.
func (b *blocks) String() string {
	s := fmt.Sprintf("%s of %d %v, root %d, in place %v", b.kind, b.n, b.Type, b.root, b.inPlace)
	switch {
	case b.reduces():
		s += fmt.Sprintf(", %v", b.op)
	case b.vectors():
		s += fmt.Sprintf(", counts %v", b.counts)
	}
	return s
}

// count is how many elements a rank sends to another one.
func (b *blocks) count(s, d int) int {
	if b.vectors() {
		return b.counts[s][d]
	}
	return b.n
}

// sent is where the block from a rank to another one begins in that rank's source.
func (b *blocks) sent(s, d int) (at int) {
	for r := 0; r < d && !b.alike(); r++ {
		at += b.count(s, r)
	}
	return at
}

// come is where the block from a rank begins in the destination of another one.
func (b *blocks) come(s, d int) (at int) {
	for r := 0; r < s && !b.reduces() && !b.fromRoot(); r++ {
		at += b.count(r, d)
	}
	return at
}

// lengths are those of a rank's source and destination.
func (b *blocks) lengths(rank int) (src, dst int) {
	last := b.Ranks - 1
	switch {
	case b.fromRoot() && rank != b.root:
	case b.alike():
		src = b.count(rank, 0)
	default:
		src = b.sent(rank, last) + b.count(rank, last)
	}
	switch {
	case b.toRoot() && rank != b.root:
	case b.fromRoot():
		dst = b.count(b.root, rank)
	default:
		dst = b.come(last, rank) + b.count(last, rank)
	}
	return src, dst
}

// places is whether this rank's buffers are one, and where the smaller one then begins in the larger one.
func (b *blocks) places(rank int) (at int, same bool) {
	src, dst := b.lengths(rank)
	switch {
	case !b.inPlace, strings.HasPrefix(b.kind, "all_to_all"), b.toRoot() && rank != b.root, b.fromRoot() && rank != b.root:
		return 0, false
	case b.alike() && !b.reduces():
		return b.come(rank, rank), src > 0 // nothing has no place
	}
	return b.sent(rank, rank), dst > 0
}

// prepare makes this rank's buffers, and fills them.
func (b *blocks) prepare(c *ubcoll.Comm, where func() conform.Where) (err error) {
	me := c.Rank()
	src, dst := b.lengths(me)
	at, same := b.places(me)
	n, m := src, dst
	if same {
		n, m = max(src, dst), 0
	}
	if b.src, err = hold(c, where(), b.Type, n); err != nil {
		return err
	}
	if b.dst, err = hold(c, where(), b.Type, m); err != nil {
		return err
	}
	b.from, b.to, b.input, b.output = b.src.vec(), b.dst.vec(), b.src.ptr(), b.dst.ptr()
	if same {
		part := unsafe.Add(b.src.ptr(), at*b.Type.Size())
		if b.to, b.output = b.src.vec().Slice(at, at+min(src, dst)), part; src < dst {
			b.from, b.to, b.input, b.output = b.to, b.src.vec(), part, b.src.ptr()
		}
	}
	b.sends, b.comes = make([]int, b.Ranks), make([]int, b.Ranks)
	b.fill(me)
	return nil
}

// fill gives this rank's source its data, and its vectors the counts.
func (b *blocks) fill(me int) {
	for _, m := range []*memory{&b.src, &b.dst} {
		for i := range m.bytes() {
			m.bytes()[i] = 0x5a
		}
	}
	src, _ := b.lengths(me)
	b.Fill(b.input, src, me)
	for r := range b.Ranks {
		b.sends[r], b.comes[r] = b.count(me, r), b.count(r, me)
	}
}

// call makes the call.
func (b *blocks) call(ctx context.Context, c *ubcoll.Comm) error {
	switch b.kind {
	case "reduce_scatter":
		return coll.ReduceScatter(ctx, c, b.to, b.from, b.op)
	case "reduce":
		return coll.Reduce(ctx, c, b.to, b.from, b.op, b.root)
	case "all_gather":
		return coll.AllGather(ctx, c, b.to, b.from)
	case "gather":
		return coll.Gather(ctx, c, b.to, b.from, b.root)
	case "scatter":
		return coll.Scatter(ctx, c, b.to, b.from, b.root)
	case "all_to_all":
		return coll.AllToAll(ctx, c, b.to, b.from)
	case "all_gather_v":
		return coll.AllGatherV(ctx, c, b.to, b.comes, b.from)
	case "gather_v":
		return coll.GatherV(ctx, c, b.to, b.comes, b.from, b.root)
	case "scatter_v":
		return coll.ScatterV(ctx, c, b.to, b.from, b.sends, b.root)
	}
	return coll.AllToAllV(ctx, c, b.to, b.comes, b.from, b.sends)
}

// check checks the result, and that the source is as it was.
func (b *blocks) check(c *ubcoll.Comm) error {
	me := c.Rank()
	src, dst := b.lengths(me)
	compare := func(s int) error {
		at, first, n := b.come(s, me), b.sent(s, me), b.count(s, me)
		p := unsafe.Add(b.output, at*b.Type.Size())
		wrong, is := 0, verify.Mismatch{}
		if b.reduces() {
			wrong, is = b.Check(p, first, n)
		} else {
			wrong, is = b.CheckInput(p, first, n, s)
		}
		if wrong > 0 {
			return fmt.Errorf("%d elements from rank %d are wrong, the first: %v (%s)", wrong, s, is, c.LastOp().String())
		}
		return nil
	}
	switch {
	case dst == 0:
	case b.reduces() || b.fromRoot():
		if err := compare(b.root); err != nil {
			return err
		}
	default:
		for s := range b.Ranks {
			if err := compare(s); err != nil {
				return err
			}
		}
	}
	if _, same := b.places(me); same {
		return nil
	}
	if wrong, at := b.CheckInput(b.input, 0, src, me); wrong > 0 {
		return fmt.Errorf("%d elements of the source have changed, the first: %v", wrong, at)
	}
	return nil
}

func (b *blocks) free() error { return errors.Join(b.src.free(), b.dst.free()) }

func (b *blocks) run(ctx context.Context, c *ubcoll.Comm, mine *rand.Rand) error {
	return fail(c, b, testkit.InOrder(
		func() error { return b.prepare(c, func() conform.Where { return anywhere(mine) }) },
		func() error { return b.call(ctx, c) },
		func() error { return b.check(c) },
		b.free))
}

// Blocks makes calls of these collectives of every type with every operation, in and out of place, in several sizes, from
// memory that differs between ranks.
func Blocks(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 15)
	for _, t := range dtype.All() {
		for _, kind := range blockKinds {
			ops := reductions(t, c.Size())
			if kind != "reduce_scatter" && kind != "reduce" {
				ops = ops[:2]
			}
			for _, r := range ops {
				b := newBlocks(all, c.Size(), kind, r, small(all, t.Size()))
				if err := b.run(ctx, c, mine); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
