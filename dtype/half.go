package dtype

import "math"

// F16 is an IEEE 754 binary16 value as its bits; its [Type] is Float16.
type F16 uint16

// BF16 is a bfloat16 value (the upper half of a float32) as its bits; its [Type] is BFloat16.
type BF16 uint16

// ToF16 rounds f to the nearest binary16, ties to even. Overflow gives infinity, and a NaN stays a (quiet) NaN, as in
// IEEE 754-2019 section 4.3.1.
func ToF16(f float32) F16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000: // NaN: keep the upper payload bits, make it quiet
		return F16(sign | 0x7e00 | uint16(abs>>13&0x1ff))
	case abs >= 0x477ff000: // 65520 and above round to infinity
		return F16(sign | 0x7c00)
	case abs < 0x38800000: // below 2^-14: subnormal, in units of 2^-24; the addition rounds
		return F16(sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-0x3f000000))
	}
	abs += 0xfff + abs>>13&1
	return F16(sign | uint16((abs-0x38000000)>>13))
}

// Float32 is the exact value of h.
func (h F16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero and subnormals, exact in float32
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(v))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// ToBF16 rounds f to the nearest bfloat16, ties to even; a NaN stays a (quiet) NaN.
func ToBF16(f float32) BF16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return BF16(b>>16 | 0x40)
	}
	return BF16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 is the exact value of h.
func (h BF16) Float32() float32 { return math.Float32frombits(uint32(h) << 16) }
