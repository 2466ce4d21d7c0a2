package hosts

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/conform"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/verify"
)

// memory is n elements, held in some way. Behind them is a guard that nobody may write to.
type memory struct {
	conform.Memory[uint64]
	typ dtype.Type
	n   int
}

const guard = 0xfeedfacecafebeef

func hold(c *ubcoll.Comm, w conform.Where, t dtype.Type, n int) (m memory, err error) {
	words := (n*t.Size() + 7) / 8
	m.typ, m.n = t, n
	m.Memory, err = conform.Hold[uint64](c, w, words+1)
	if err == nil {
		m.Slice[words] = guard
	}
	return m, err
}

func (m *memory) ptr() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.Slice)) }

func (m *memory) bytes() []byte { return unsafe.Slice((*byte)(m.ptr()), m.n*m.typ.Size()) }

// vec returns the elements.
func (m *memory) vec() ubcoll.Vec { return m.Vec.As(dtype.Uint8).Slice(0, m.n*m.typ.Size()).As(m.typ) }

// free frees the memory, and returns an error if something was written behind it.
func (m *memory) free() error {
	last := m.Slice[len(m.Slice)-1]
	if err := m.Free(); err != nil {
		return err
	}
	if last != guard {
		return fmt.Errorf("what is behind the memory is %#x", last)
	}
	return nil
}

// reduction describes how a test reduces, and its data.
type reduction struct {
	verify.Data
	op      ubcoll.Op
	n       int
	inPlace bool
}

// String describes it.
func (r *reduction) String() string {
	return fmt.Sprintf("%v of %d %v, in place %v", r.op, r.n, r.Type, r.inPlace)
}

// reductions returns the reductions that a type has.
func reductions(t dtype.Type, ranks int) (all []reduction) {
	add := func(op ubcoll.Op, d verify.Data) {
		d.Type, d.Ranks = t, ranks
		all = append(all, reduction{Data: d, op: op})
	}
	if t != dtype.Bool {
		add(ubcoll.Sum, verify.Data{Op: cpu.Sum})
		add(ubcoll.Prod, verify.Data{Op: cpu.Prod})
		add(ubcoll.Avg, verify.Data{Op: cpu.Sum, Average: true})
		add(ubcoll.PreMulSum(4), verify.Data{Op: cpu.Sum, Factor: 4})
	}
	add(ubcoll.Min, verify.Data{Op: cpu.Min})
	add(ubcoll.Max, verify.Data{Op: cpu.Max})
	return all
}

// anywhere returns a random way to hold memory.
func anywhere(r *rand.Rand) conform.Where { return conform.Where(r.IntN(int(conform.NumWhere))) }

// prepare makes r's source and destination on this rank; in place they are the same.
func (r *reduction) prepare(c *ubcoll.Comm, mine *rand.Rand) (src, dst memory, err error) {
	if src, err = hold(c, anywhere(mine), r.Type, r.n); err != nil {
		return src, dst, err
	}
	r.Fill(src.ptr(), r.n, c.Rank())
	if r.inPlace {
		return src, src, nil
	}
	dst, err = hold(c, anywhere(mine), r.Type, r.n)
	for i := range dst.bytes() {
		dst.bytes()[i] = 0x5a
	}
	return src, dst, err
}

// check checks the result and the source, and frees both.
func (r *reduction) check(c *ubcoll.Comm, src, dst memory) error {
	if wrong, at := r.Check(dst.ptr(), 0, r.n); wrong > 0 {
		return fmt.Errorf("%d elements are wrong, the first: %v (%s)", wrong, at, c.LastOp().String())
	}
	if r.inPlace {
		return dst.free()
	}
	if wrong, at := r.CheckInput(src.ptr(), 0, r.n, c.Rank()); wrong > 0 {
		return fmt.Errorf("%d elements of the source have changed, the first: %v", wrong, at)
	}
	return errors.Join(src.free(), dst.free())
}

func (r *reduction) run(ctx context.Context, c *ubcoll.Comm, mine *rand.Rand) error {
	src, dst, err := r.prepare(c, mine)
	if err == nil {
		err = coll.AllReduce(ctx, c, dst.vec(), src.vec(), r.op)
	}
	if err == nil {
		err = r.check(c, src, dst)
	}
	return fail(c, r, err)
}

// small returns a number of elements that take from no bytes to some ten thousand.
func small(all *rand.Rand, size int) int {
	few := []int{0, 1, 2, 3, 7, 8, 9, 31, 48 / size, 48/size + 1, 255, 4096 / size, 16384 / size, 16384/size + 1, 9973}
	if all.IntN(3) > 0 {
		return few[all.IntN(len(few))]
	}
	return int(math.Exp(all.Float64() * 10))
}

// Reduce all-reduces every type with every operation, in and out of place, in several sizes, from memory that differs
// between ranks.
func Reduce(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 11)
	for _, t := range dtype.All() {
		for _, r := range reductions(t, c.Size()) {
			for _, inPlace := range []bool{false, true} {
				r.Seed, r.n, r.inPlace = all.Uint64(), small(all, t.Size()), inPlace
				if err := r.run(ctx, c, mine); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// broadcast is a broadcast of n elements.
type broadcast struct {
	verify.Data
	n, root int
}

// String describes it.
func (b *broadcast) String() string {
	return fmt.Sprintf("broadcast of %d %v from rank %d", b.n, b.Type, b.root)
}

func newBroadcast(all *rand.Rand, ranks int, t dtype.Type, n, root int) broadcast {
	return broadcast{verify.Data{Type: t, Op: cpu.Max, Ranks: ranks, Seed: all.Uint64()}, n, root}
}

func (b *broadcast) prepare(c *ubcoll.Comm, mine *rand.Rand) (memory, error) {
	m, err := hold(c, anywhere(mine), b.Type, b.n)
	if err == nil {
		b.Fill(m.ptr(), b.n, c.Rank()) // different data on each rank
	}
	return m, err
}

func (b *broadcast) check(c *ubcoll.Comm, m memory) error {
	if wrong, at := b.CheckInput(m.ptr(), 0, b.n, b.root); wrong > 0 {
		return fmt.Errorf("%d elements are wrong, the first: %v (%s)", wrong, at, c.LastOp().String())
	}
	return m.free()
}

func (b *broadcast) run(ctx context.Context, c *ubcoll.Comm, mine *rand.Rand) error {
	m, err := b.prepare(c, mine)
	if err == nil {
		err = coll.Broadcast(ctx, c, m.vec(), b.root)
	}
	if err == nil {
		err = b.check(c, m)
	}
	return fail(c, b, err)
}

// Broadcast broadcasts every type from every root, in several sizes.
func Broadcast(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 12)
	for _, t := range dtype.All() {
		for root := range c.Size() {
			b := newBroadcast(all, c.Size(), t, small(all, t.Size()), root)
			if err := b.run(ctx, c, mine); err != nil {
				return err
			}
		}
	}
	return nil
}

// Large does a few operations of up to 8 MiB, around the sizes at which algorithms and pieces change.
func Large(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 13)
	types := dtype.All()
	for at, bytes := range []int{16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 3 << 20, 8 << 20} {
		t := types[all.IntN(len(types))]
		rs := reductions(t, c.Size())
		r := rs[all.IntN(len(rs))]
		r.Seed, r.n, r.inPlace = all.Uint64(), bytes/t.Size()-1+all.IntN(3), all.IntN(2) == 0
		b := newBroadcast(all, c.Size(), types[all.IntN(len(types))], 0, all.IntN(c.Size()))
		b.n = bytes/b.Type.Size() - 1 + all.IntN(3)
		t = types[all.IntN(len(types))]
		rs = reductions(t, c.Size())
		kind := blockKinds[(at+all.IntN(2)*5)%len(blockKinds)]
		k := newBlocks(all, c.Size(), kind, rs[all.IntN(len(rs))], (bytes/t.Size()-1+all.IntN(3))/c.Size())
		if err := testkit.InOrder(
			func() error { return r.run(ctx, c, mine) },
			func() error { return b.run(ctx, c, mine) },
			func() error { return k.run(ctx, c, mine) }); err != nil {
			return err
		}
	}
	return nil
}

// SameBits all-reduces floats whose sums and products depend on the order of combining. All ranks must have the same
// bits anyway.
func SameBits(ctx context.Context, c *ubcoll.Comm) error {
	all, mine := draws(c, 14)
	for _, t := range []dtype.Type{dtype.Float16, dtype.BFloat16, dtype.Float32, dtype.Float64} {
		for _, op := range []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Avg, ubcoll.PreMulSum(1.0 / 3)} {
			for _, n := range []int{1, 24 / t.Size(), small(all, t.Size()), 100_000 + all.IntN(100_000)} {
				m, err := hold(c, anywhere(mine), t, n)
				if err != nil {
					return err
				}
				for i := range n {
					bits := verify.Encode(t, 1+mine.NormFloat64()/8)
					for k := range t.Size() {
						m.bytes()[i*t.Size()+k] = byte(bits >> (8 * k))
					}
				}
				if err := coll.AllReduce(ctx, c, m.vec(), m.vec(), op); err != nil {
					return err
				}
				rows, err := share(ctx, c, hash(m.bytes()))
				if err != nil {
					return err
				}
				other := slices.IndexFunc(rows, func(row []uint64) bool { return row[0] != rows[c.Rank()][0] })
				if other >= 0 {
					return conform.Fail(c, "%v of %d %v: rank %d has other bits", op, n, t, other)
				}
				if err := m.free(); err != nil {
					return conform.Fail(c, "%v of %d %v: %w", op, n, t, err)
				}
			}
		}
	}
	return nil
}
