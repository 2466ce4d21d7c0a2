package collectives

import (
	"math"

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
