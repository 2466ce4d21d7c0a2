package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/dtype"
)

// eachLevel runs f once on every level that this machine and build have.
func eachLevel(t *testing.T, f func(t *testing.T)) {
	was := current
	defer func() { current = was }()
	for l := levelGo; l <= levelAVX512; l++ {
		if l.available() {
			current = l
			t.Run("level="+l.String(), f)
		}
	}
}

var allOps = []Op{Sum, Prod, Min, Max}

// opsOf are the operations on elements of t.
func opsOf(t dtype.Type) []Op {
	if t == dtype.Bool {
		return []Op{Min, Max}
	}
	return allOps
}

// load returns the element's bits; store writes them.
func load(t dtype.Type, b []byte, i int) uint64 {
	var w [8]byte
	copy(w[:], b[i*t.Size():(i+1)*t.Size()])
	return binary.LittleEndian.Uint64(w[:])
}

func store(t dtype.Type, b []byte, i int, v uint64) {
	var w [8]byte
	binary.LittleEndian.PutUint64(w[:], v)
	copy(b[i*t.Size():(i+1)*t.Size()], w[:])
}

// extend makes a 64-bit integer of an integer's bits, and drops the bits of a sum or product that do not fit.
func extend(t dtype.Type, v uint64) uint64 {
	drop := 64 - 8*t.Size()
	if t.Signed() {
		return uint64(int64(v<<drop) >> drop)
	}
	return v << drop >> drop
}

func naiveInt(t dtype.Type, op Op, x, y uint64) uint64 {
	less := x < y
	if t.Signed() {
		less = int64(x) < int64(y)
	}
	switch {
	case op == Sum:
		return extend(t, x+y)
	case op == Prod:
		return extend(t, x*y)
	case (op == Min) == less:
		return x
	}
	return y
}

func naiveFloat[T float32 | float64](op Op, x, y T) T {
	negative := math.Signbit(float64(x))
	switch {
	case op == Sum:
		return x + y
	case op == Prod:
		return x * y
	case x != x:
		return x
	case y != y:
		return y
	case x == y && (op == Min) == negative, op == Min && x < y, op == Max && x > y:
		return x
	}
	return y
}

// naive reduces the i-th elements of all sources, one at a time.
func naive(t dtype.Type, op Op, srcs [][]byte, i, div int) uint64 {
	f32 := func(v uint64) float32 {
		switch t {
		case dtype.Float16:
			return dtype.F16(v).Float32()
		case dtype.BFloat16:
			return dtype.BF16(v).Float32()
		}
		return math.Float32frombits(uint32(v))
	}
	first := load(t, srcs[0], i)
	switch {
	case t == dtype.Float64:
		r := math.Float64frombits(first)
		for _, s := range srcs[1:] {
			r = naiveFloat(op, r, math.Float64frombits(load(t, s, i)))
		}
		if div > 1 {
			r /= float64(div)
		}
		return math.Float64bits(r)
	case t.Float():
		r := f32(first)
		for _, s := range srcs[1:] {
			r = naiveFloat(op, r, f32(load(t, s, i)))
		}
		if div > 1 {
			r /= float32(div)
		}
		switch t {
		case dtype.Float16:
			return uint64(dtype.ToF16(r))
		case dtype.BFloat16:
			return uint64(dtype.ToBF16(r))
		}
		return uint64(math.Float32bits(r))
	}
	if t == dtype.Bool {
		trues := 0
		for _, s := range srcs {
			if s[i] != 0 {
				trues++
			}
		}
		if op == Max && trues > 0 || trues == len(srcs) {
			return 1
		}
		return 0
	}
	r := extend(t, first)
	for _, s := range srcs[1:] {
		r = naiveInt(t, op, r, extend(t, load(t, s, i)))
	}
	switch {
	case div > 1 && t.Signed():
		r = uint64(int64(r) / int64(div))
	case div > 1:
		r /= uint64(div)
	}
	return r
}

// nan reports whether the element is a NaN.
func nan(t dtype.Type, v uint64) bool {
	switch t {
	case dtype.Float16:
		return v&0x7fff > 0x7c00
	case dtype.BFloat16:
		return v&0x7fff > 0x7f80
	case dtype.Float32:
		return v&(1<<31-1) > 0xff<<23
	case dtype.Float64:
		return v&(1<<63-1) > 0x7ff<<52
	}
	return false
}

// same fails if an element of got is neither want's bit for bit nor, like want's, a NaN.
func same(t testing.TB, ty dtype.Type, want, got []byte, msg ...any) {
	t.Helper()
	if string(want) == string(got) {
		return
	}
	require.Len(t, got, len(want), msg...)
	for i := range len(want) / ty.Size() {
		w, g := load(ty, want, i), load(ty, got, i)
		if w != g && !(nan(ty, w) && nan(ty, g)) {
			require.Equalf(t, strconv.FormatUint(w, 16), strconv.FormatUint(g, 16), "%v[%d] of %d: %v",
				ty, i, len(want)/ty.Size(), msg)
		}
	}
}

// special returns the bits of edge values.
func special(t dtype.Type) []uint64 {
	switch t {
	case dtype.Float16:
		return []uint64{0, 0x8000, 0x3c00, 0xbc00, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
			0x7e00, 0xfd01}
	case dtype.BFloat16:
		return []uint64{0, 0x8000, 0x3f80, 0xbf80, 1, 0x8001, 0x7f, 0x80, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
			0x7fc0, 0xffa1}
	case dtype.Float32:
		return []uint64{0, 1 << 31, 0x3f800000, 0xbf800000, 1, 0x80000001, 0x7fffff, 0x7f7fffff, 0x7f800000, 0xff800000,
			0x7fc00000, 0xffa00001}
	case dtype.Float64:
		return []uint64{0, 1 << 63, math.Float64bits(1), math.Float64bits(-1), 1, 1<<63 | 1,
			math.Float64bits(math.MaxFloat64), math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)),
			math.Float64bits(math.NaN()), 0xfff4000000000001}
	}
	if t == dtype.Bool { // random bytes are 0 only once in 256
		return []uint64{0, 0, 0, 1}
	}
	top := uint64(1) << (8*t.Size() - 1)
	return []uint64{0, 1, 2, top - 1, top, top + 1, 2*top - 2, 2*top - 1}
}

// elements returns n random elements at a random address that is aligned for them. Every eighth is special; of bools,
// every other one.
func elements(r *rand.Rand, t dtype.Type, n int) []byte {
	words := make([]uint64, n+16)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	b = b[r.IntN(64/t.Size())*t.Size():][: n*t.Size() : n*t.Size()]
	edge := special(t)
	for i := range n {
		v := r.Uint64()
		if v%8 == 0 || t == dtype.Bool && v%2 == 0 {
			v = edge[r.IntN(len(edge))]
		}
		store(t, b, i, v)
	}
	return b
}

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func ats(bs [][]byte) (ps []unsafe.Pointer) {
	for _, b := range bs {
		ps = append(ps, at(b))
	}
	return ps
}

// naiveAll returns the naive result for all n elements.
func naiveAll(t dtype.Type, op Op, srcs [][]byte, n, div int) []byte {
	want := make([]byte, n*t.Size())
	for i := range n {
		store(t, want, i, naive(t, op, srcs, i, div))
	}
	return want
}
