package verify

import (
	"math"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// Mix is the finalizer of splitmix64: each bit of x affects about half of the result's bits.
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Extend converts an integer of type t to a 64-bit integer of the same value. It drops bits that do not fit t.
func Extend(t dtype.Type, bits uint64) uint64 {
	unused := 64 - 8*t.Size()
	if t.Signed() {
		return uint64(int64(bits<<unused) >> unused)
	}
	return bits << unused >> unused
}

// Decode returns the value of a float's bits.
func Decode(t dtype.Type, bits uint64) float64 {
	switch t {
	case dtype.Float16:
		return float64(dtype.F16(bits).Float32())
	case dtype.BFloat16:
		return float64(dtype.BF16(bits).Float32())
	case dtype.Float32:
		return float64(math.Float32frombits(uint32(bits)))
	}
	return math.Float64frombits(bits)
}

// Encode returns the bits of the float nearest to x. Types smaller than float32 are rounded by way of a float32.
func Encode(t dtype.Type, x float64) uint64 {
	switch t {
	case dtype.Float16:
		return uint64(dtype.ToF16(float32(x)))
	case dtype.BFloat16:
		return uint64(dtype.ToBF16(float32(x)))
	case dtype.Float32:
		return uint64(math.Float32bits(float32(x)))
	}
	return math.Float64bits(x)
}

func load(t dtype.Type, p unsafe.Pointer, i int) uint64 {
	p = unsafe.Add(p, i*t.Size())
	switch t.Size() {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func store(t dtype.Type, p unsafe.Pointer, i int, bits uint64) {
	p = unsafe.Add(p, i*t.Size())
	switch t.Size() {
	case 1:
		*(*uint8)(p) = uint8(bits)
	case 2:
		*(*uint16)(p) = uint16(bits)
	case 4:
		*(*uint32)(p) = uint32(bits)
	case 8:
		*(*uint64)(p) = bits
	}
}
