package collectives

import (
	"math"
	"unsafe"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
)

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

// encode is x as a T, as a bool whether it is not 0.
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
