package jobtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/dtype"
)

// where is how a rank holds a buffer; ranks of one call may differ.
type where int

const (
	goSlice where = iota
	alloced       // of Alloc, not registered by the program
	registered
	adopted
	numWhere
)

func (w where) String() string { return [...]string{"go", "alloc", "registered", "adopted"}[w] }

// memory is n elements of T, held in some way, until free.
type memory[T dtype.Elem] struct {
	slice []T
	vec   ubcoll.Vec
	free  func() error
}

func hold[T dtype.Elem](c *ubcoll.Comm, w where, n int) (memory[T], error) {
	size := dtype.Of[T]().Size()
	switch w {
	case goSlice:
		s := make([]T, n)
		return memory[T]{s, ubcoll.Of(s), func() error { return nil }}, nil
	case adopted:
		b, err := syscall.Mmap(-1, 0, max(n*size, 1), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			return memory[T]{}, err
		}
		buf, err := ubcoll.Adopt(c, ubcoll.Host, unsafe.Pointer(&b[0]), len(b))
		if err != nil {
			return memory[T]{}, err
		}
		v := buf.Vec().Slice(0, n*size).As(dtype.Of[T]())
		return memory[T]{unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), v,
			func() error { return errors.Join(buf.Free(), syscall.Munmap(b)) }}, nil
	}
	b, err := ubcoll.Alloc[T](c, ubcoll.Host, n)
	if err != nil {
		return memory[T]{}, err
	}
	m := memory[T]{b.Slice(), b.Vec(), b.Free}
	if w == registered && n > 0 {
		r, err := c.RegisterBuffer(b.Vec())
		if err != nil {
			return memory[T]{}, err
		}
		m.free = func() error { return errors.Join(r.Close(), b.Free()) }
	}
	return m, nil
}

// Counts of elements that the matrix goes through: none, one, around the number of ranks, not divisible, around the
// chunks of the ring, several of its rounds.
func counts(n int) []int {
	return []int{0, 1, n - 1, n + 1, 17, 1000, 16384*n + 3, 70001}
}

// Matrix reduces every type with every operation, in and out of place, in all counts, from memory of a kind that
// differs between ranks, and checks every element and that all ranks have the same bits.
func Matrix(ctx context.Context, c *ubcoll.Comm) error {
	return errors.Join(
		matrixOf[int8](ctx, c), matrixOf[uint8](ctx, c), matrixOf[int16](ctx, c), matrixOf[uint16](ctx, c),
		matrixOf[int32](ctx, c), matrixOf[uint32](ctx, c), matrixOf[int64](ctx, c), matrixOf[uint64](ctx, c),
		matrixOf[dtype.F16](ctx, c), matrixOf[dtype.BF16](ctx, c), matrixOf[float32](ctx, c), matrixOf[float64](ctx, c))
}

var allOps = []ubcoll.Op{ubcoll.Sum, ubcoll.Prod, ubcoll.Min, ubcoll.Max, ubcoll.Avg}

func matrixOf[T dtype.Elem](ctx context.Context, c *ubcoll.Comm) error {
	pick := rand.New(rand.NewPCG(Seed(), 1000+uint64(c.Rank()))) // differs between ranks
	for i, op := range allOps {
		for j, n := range counts(c.Size()) {
			inPlace := (i+j)%2 == 1
			ws, wd := where(pick.IntN(int(numWhere))), where(pick.IntN(int(numWhere)))
			if err := one[T](ctx, c, op, n, inPlace, ws, wd, uint64(i*100+j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Random makes calls with everything drawn at random, from a seed that all ranks share.
func Random(ctx context.Context, c *ubcoll.Comm) error {
	all := rand.New(rand.NewPCG(Seed(), 1))
	mine := rand.New(rand.NewPCG(Seed(), 1000+uint64(c.Rank())))
	for k := 0; k < 60; k++ {
		op := allOps[all.IntN(len(allOps))]
		n := int(math.Exp(all.Float64() * 12.5)) // up to 268337
		inPlace := all.IntN(2) == 0
		ws, wd := where(mine.IntN(int(numWhere))), where(mine.IntN(int(numWhere)))
		var err error
		switch all.IntN(4) {
		case 0:
			err = one[float32](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 1:
			err = one[dtype.BF16](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 2:
			err = one[uint8](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		case 3:
			err = one[float64](ctx, c, op, n, inPlace, ws, wd, uint64(k))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one makes one all-reduce and checks it.
func one[T dtype.Elem](ctx context.Context, c *ubcoll.Comm, op ubcoll.Op, n int, inPlace bool, ws, wd where, salt uint64) error {
	src, err := hold[T](c, ws, n)
	if err != nil {
		return err
	}
	dst := src
	if !inPlace {
		if dst, err = hold[T](c, wd, n); err != nil {
			return err
		}
	}
	for i := range dst.slice {
		dst.slice[i] = encode[T](99)
	}
	for i := range src.slice {
		src.slice[i] = encode[T](value(op, c.Rank(), i, salt))
	}
	what := fmt.Sprintf("%v %v of %d, in place %v, source %v, destination %v", dtype.Of[T](), op, n, inPlace, ws, wd)
	if err := coll.AllReduce(ctx, c, dst.vec, src.vec, op); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i := range dst.slice {
		if got, want := dst.slice[i], expect[T](op, c.Size(), i, salt); got != want {
			return fail(c, "%s: element %d is %v, not %v (%s)", what, i, got, want, c.LastOp().Explain())
		}
		if !inPlace && src.slice[i] != encode[T](value(op, c.Rank(), i, salt)) {
			return fail(c, "%s: source element %d was changed", what, i)
		}
	}
	if !inPlace {
		if err := dst.free(); err != nil {
			return fail(c, "%s: free: %w", what, err)
		}
	}
	if err := src.free(); err != nil {
		return fail(c, "%s: free: %w", what, err)
	}
	return nil
}

// value is a small whole number, so that every partial result is exact in every type, in any order of operations.
func value(op ubcoll.Op, rank, i int, salt uint64) float64 {
	h := (uint64(i)*2654435761 + uint64(rank)*40503 + salt*97) >> 3
	if op == ubcoll.Prod {
		return float64(1 + h%7/6) // 1, now and then 2
	}
	return float64(h % 5)
}

func expect[T dtype.Elem](op ubcoll.Op, ranks, i int, salt uint64) T {
	acc := value(op, 0, i, salt)
	for r := 1; r < ranks; r++ {
		v := value(op, r, i, salt)
		switch op {
		case ubcoll.Sum, ubcoll.Avg:
			acc += v
		case ubcoll.Prod:
			acc *= v
		case ubcoll.Min:
			acc = min(acc, v)
		case ubcoll.Max:
			acc = max(acc, v)
		}
	}
	if op == ubcoll.Avg {
		switch t := dtype.Of[T](); {
		case !t.Float():
			acc = math.Trunc(acc / float64(ranks))
		case t != dtype.Float64:
			return encode[T](float64(float32(acc) / float32(ranks)))
		default:
			acc /= float64(ranks)
		}
	}
	return encode[T](acc)
}

func encode[T dtype.Elem](x float64) T {
	var t T
	switch p := any(&t).(type) {
	case *int8:
		*p = int8(int64(x))
	case *uint8:
		*p = uint8(int64(x))
	case *int16:
		*p = int16(int64(x))
	case *uint16:
		*p = uint16(int64(x))
	case *int32:
		*p = int32(x)
	case *uint32:
		*p = uint32(x)
	case *int64:
		*p = int64(x)
	case *uint64:
		*p = uint64(x)
	case *dtype.F16:
		*p = dtype.ToF16(float32(x))
	case *dtype.BF16:
		*p = dtype.ToBF16(float32(x))
	case *float32:
		*p = float32(x)
	case *float64:
		*p = x
	}
	return t
}
