package collectives

import (
	"math"
	"slices"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
)

// period is how many elements differ before they repeat, so that most of the time is spent in the library and not on
// making data. It is a prime, so data that is off by a chunk or a block is wrong.
const period = 4099

// pattern returns the first n elements of at, or one period of them.
func pattern[T dtype.Elem](n int, at func(i int) T) []T {
	p := make([]T, min(n, period))
	for i := range p {
		p[i] = at(i)
	}
	return p
}

// fill fills x with repeats of the pattern.
func fill[T dtype.Elem](x, pattern []T) {
	for len(x) > 0 {
		x = x[copy(x, pattern):]
	}
}

// differs returns the first element of x that differs from the repeated pattern, or -1.
func differs[T dtype.Elem](x, pattern []T) int {
	for at := 0; at < len(x); at += len(pattern) {
		part := x[at:min(at+len(pattern), len(x))]
		if slices.Equal(part, pattern[:len(part)]) {
			continue
		}
		for i := range part {
			if part[i] != pattern[i] {
				return at + i
			}
		}
	}
	return -1
}

// value is a small whole number, so that every partial result is exact in every type, in any order.
func value(op ubcoll.Op, rank, i int, salt uint64) float64 {
	h := (uint64(i%period)*2654435761 + uint64(rank)*40503 + salt*97) >> 3
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

// encode returns x as a T; as a bool, whether it is not 0.
func encode[T dtype.Elem](x float64) (e T) {
	p := unsafe.Pointer(&e)
	switch dtype.Of[T]() {
	case dtype.Int8, dtype.Uint8:
		*(*int8)(p) = int8(int64(x))
	case dtype.Int16, dtype.Uint16:
		*(*int16)(p) = int16(int64(x))
	case dtype.Int32, dtype.Uint32:
		*(*int32)(p) = int32(int64(x))
	case dtype.Int64, dtype.Uint64:
		*(*int64)(p) = int64(x)
	case dtype.Float16:
		*(*dtype.F16)(p) = dtype.ToF16(float32(x))
	case dtype.BFloat16:
		*(*dtype.BF16)(p) = dtype.ToBF16(float32(x))
	case dtype.Float32:
		*(*float32)(p) = float32(x)
	case dtype.Float64:
		*(*float64)(p) = x
	case dtype.Bool:
		*(*bool)(p) = x != 0
	}
	return e
}
