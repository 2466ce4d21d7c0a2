package cpu

import (
	"math"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// The reductions in plain Go. They serve operands too small for a call into C, and builds without C or with the race
// detector; and the kernels are tested against them. The runtime can stop these loops anywhere.

type number interface {
	int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64 | float32 | float64
}

type half interface {
	dtype.F16 | dtype.BF16
	Float32() float32
}

const block = 64 // accumulators on the stack

// view returns the n elements behind p that begin with the i-th.
func view[T any](p unsafe.Pointer, i, n int) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Add(p, i*int(unsafe.Sizeof(z)))), n)
}

func reduceGo(t dtype.Type, op Op, dst, a, b unsafe.Pointer, n int) {
	switch t {
	case dtype.Int8:
		apply(op, view[int8](dst, 0, n), view[int8](a, 0, n), view[int8](b, 0, n))
	case dtype.Uint8:
		apply(op, view[uint8](dst, 0, n), view[uint8](a, 0, n), view[uint8](b, 0, n))
	case dtype.Int16:
		apply(op, view[int16](dst, 0, n), view[int16](a, 0, n), view[int16](b, 0, n))
	case dtype.Uint16:
		apply(op, view[uint16](dst, 0, n), view[uint16](a, 0, n), view[uint16](b, 0, n))
	case dtype.Int32:
		apply(op, view[int32](dst, 0, n), view[int32](a, 0, n), view[int32](b, 0, n))
	case dtype.Uint32:
		apply(op, view[uint32](dst, 0, n), view[uint32](a, 0, n), view[uint32](b, 0, n))
	case dtype.Int64:
		apply(op, view[int64](dst, 0, n), view[int64](a, 0, n), view[int64](b, 0, n))
	case dtype.Uint64:
		apply(op, view[uint64](dst, 0, n), view[uint64](a, 0, n), view[uint64](b, 0, n))
	case dtype.Float32:
		apply(op, view[float32](dst, 0, n), view[float32](a, 0, n), view[float32](b, 0, n))
	case dtype.Float64:
		apply(op, view[float64](dst, 0, n), view[float64](a, 0, n), view[float64](b, 0, n))
	default: // half types and bools
		dsts, srcs := [1]unsafe.Pointer{dst}, [2]unsafe.Pointer{a, b}
		reduceMultiGo(t, op, dsts[:], srcs[:], n, 0)
	}
}

// addFloat32 and sumFloat32 do the commonest reduction at its smallest sizes, where the calls and blocks of the general
// code cost more than the sums.
func addFloat32(dst, a, b unsafe.Pointer, n int) {
	d, x, y := unsafe.Slice((*float32)(dst), n), unsafe.Slice((*float32)(a), n), unsafe.Slice((*float32)(b), n)
	for i := range d {
		d[i] = x[i] + y[i]
	}
}

func sumFloat32(dsts, srcs []unsafe.Pointer, n int) {
	for i := range n {
		at := 4 * i
		sum := *(*float32)(unsafe.Add(srcs[0], at))
		for _, s := range srcs[1:] {
			sum += *(*float32)(unsafe.Add(s, at))
		}
		for _, d := range dsts {
			*(*float32)(unsafe.Add(d, at)) = sum
		}
	}
}

func reduceMultiGo(t dtype.Type, op Op, dsts, srcs []unsafe.Pointer, n, div int) {
	if t == dtype.Float32 && op == Sum && div <= 1 && n <= 16 {
		sumFloat32(dsts, srcs, n)
		return
	}
	switch t {
	case dtype.Int8:
		reduceNumbers[int8](op, dsts, srcs, n, div)
	case dtype.Uint8:
		reduceNumbers[uint8](op, dsts, srcs, n, div)
	case dtype.Int16:
		reduceNumbers[int16](op, dsts, srcs, n, div)
	case dtype.Uint16:
		reduceNumbers[uint16](op, dsts, srcs, n, div)
	case dtype.Int32:
		reduceNumbers[int32](op, dsts, srcs, n, div)
	case dtype.Uint32:
		reduceNumbers[uint32](op, dsts, srcs, n, div)
	case dtype.Int64:
		reduceNumbers[int64](op, dsts, srcs, n, div)
	case dtype.Uint64:
		reduceNumbers[uint64](op, dsts, srcs, n, div)
	case dtype.Float16:
		reduceHalves(op, dsts, srcs, n, div, dtype.ToF16)
	case dtype.BFloat16:
		reduceHalves(op, dsts, srcs, n, div, dtype.ToBF16)
	case dtype.Float32:
		reduceNumbers[float32](op, dsts, srcs, n, div)
	case dtype.Float64:
		reduceNumbers[float64](op, dsts, srcs, n, div)
	case dtype.Bool:
		reduceBools(op, dsts, srcs, n)
	}
}

// reduceBools reduces the bytes as numbers, of which 0 is the least, and makes the results 0 or 1.
func reduceBools(op Op, dsts, srcs []unsafe.Pointer, n int) {
	reduceNumbers[uint8](op, dsts[:1], srcs, n, 0)
	d := view[uint8](dsts[0], 0, n)
	for i, x := range d {
		d[i] = min(x, 1)
	}
	for _, p := range dsts[1:] {
		copy(view[uint8](p, 0, n), d)
	}
}

func reduceNumbers[T number](op Op, dsts, srcs []unsafe.Pointer, n, div int) {
	var block [block]T
	for i := 0; i < n; i += len(block) {
		acc := block[:min(len(block), n-i)]
		copy(acc, view[T](srcs[0], i, len(acc)))
		for _, s := range srcs[1:] {
			apply(op, acc, acc, view[T](s, i, len(acc)))
		}
		divide(acc, div)
		for _, d := range dsts {
			copy(view[T](d, i, len(acc)), acc)
		}
	}
}

func reduceHalves[T half](op Op, dsts, srcs []unsafe.Pointer, n, div int, round func(float32) T) {
	var block, other [block]float32
	for i := 0; i < n; i += len(block) {
		acc, x := block[:min(len(block), n-i)], other[:min(len(block), n-i)]
		widen(acc, view[T](srcs[0], i, len(acc)))
		for _, s := range srcs[1:] {
			widen(x, view[T](s, i, len(x)))
			apply(op, acc, acc, x)
		}
		divide(acc, div)
		for _, p := range dsts {
			d := view[T](p, i, len(acc))
			for j, f := range acc {
				d[j] = round(f)
			}
		}
	}
}

func widen[T half](d []float32, s []T) {
	for i, h := range s {
		d[i] = h.Float32()
	}
}

func apply[T number](op Op, d, a, b []T) {
	a, b = a[:len(d)], b[:len(d)]
	switch op {
	case Sum:
		for i := range d {
			d[i] = a[i] + b[i]
		}
	case Prod:
		for i := range d {
			d[i] = a[i] * b[i]
		}
	case Min:
		for i := range d {
			d[i] = min(a[i], b[i])
		}
	case Max:
		for i := range d {
			d[i] = max(a[i], b[i])
		}
	}
}

// divide divides integers as int64 or uint64, since div may exceed the range of their type.
func divide[T number](d []T, div int) {
	if div <= 1 {
		return
	}
	var zero T
	one, two := T(1), T(2)
	switch {
	case one/two != zero:
		f := T(float64(div))
		for i := range d {
			d[i] /= f
		}
	case zero-one < zero:
		for i := range d {
			d[i] = T(int64(d[i]) / int64(div))
		}
	default:
		for i := range d {
			d[i] = T(uint64(d[i]) / uint64(div))
		}
	}
}

func scaleGo(t dtype.Type, dst, src unsafe.Pointer, n int, factor float64) {
	k := integerFactor(factor)
	switch t { // the low bits of a product are those of the unsigned product
	case dtype.Int8, dtype.Uint8:
		scaleNumbers(dst, src, n, uint8(k))
	case dtype.Int16, dtype.Uint16:
		scaleNumbers(dst, src, n, uint16(k))
	case dtype.Int32, dtype.Uint32:
		scaleNumbers(dst, src, n, uint32(k))
	case dtype.Int64, dtype.Uint64:
		scaleNumbers(dst, src, n, k)
	case dtype.Float16:
		scaleHalves(dst, src, n, float32(factor), dtype.ToF16)
	case dtype.BFloat16:
		scaleHalves(dst, src, n, float32(factor), dtype.ToBF16)
	case dtype.Float32:
		scaleNumbers(dst, src, n, float32(factor))
	case dtype.Float64:
		scaleNumbers(dst, src, n, factor)
	}
}

func scaleNumbers[T number](dst, src unsafe.Pointer, n int, k T) {
	d, s := view[T](dst, 0, n), view[T](src, 0, n)
	for i, x := range s {
		d[i] = x * k
	}
}

func scaleHalves[T half](dst, src unsafe.Pointer, n int, k float32, round func(float32) T) {
	d, s := view[T](dst, 0, n), view[T](src, 0, n)
	for i, x := range s {
		d[i] = round(x.Float32() * k)
	}
}

func addFractionsGo(t dtype.Type, dst, a, b unsafe.Pointer, n, scale, after, div int) {
	if t == dtype.Float16 {
		addFractions(dst, a, b, n, float32(scale), float32(after), float32(div), dtype.ToF16)
	} else {
		addFractions(dst, a, b, n, float32(scale), float32(after), float32(div), dtype.ToBF16)
	}
}

func addFractions[T half](dst, a, b unsafe.Pointer, n int, scale, after, div float32, round func(float32) T) {
	d, x, y := view[T](dst, 0, n), view[T](a, 0, n), view[T](b, 0, n)
	for i := range d {
		scaled := x[i].Float32() * scale
		sum := (scaled + y[i].Float32()) * after
		d[i] = round(sum / div)
	}
}

// integerFactor returns the integer part of f modulo 2^64; a negative one as two's complement. Values that no 64-bit
// integer holds count as 0, since processors differ there.
func integerFactor(f float64) uint64 {
	switch f = math.Trunc(f); {
	case f >= 0 && f < 1<<64:
		return uint64(f)
	case f < 0 && f >= -1<<63:
		return uint64(int64(f))
	}
	return 0
}
