// Package cpu reduces, scales and copies host memory with the widest instructions that the machine has. It also says
// which processors and caches the process may use. Package spin has what a wait loop needs between two looks at a word.
//
// Everything here is local and never blocks. Functions on elements never allocate. The memory is the caller's, on or
// off the Go heap. It must stay valid during the call, and others may only read the sources meanwhile. Pointers must be
// aligned to the element. An operand must be exactly a destination, or not overlap it; Move alone takes any overlap.
// With an invalid type or operation, or a negative count, the functions do nothing.
//
// Long calls return to Go every 64 KiB, so they never hold up the garbage collector.
//
// Results are the same bit for bit at every level of instructions, except for the sign and payload of a NaN. Integers
// wrap. Floats are combined in the order given; half types are computed in float32 and rounded once, to nearest even,
// at the end. Min and Max are those of Go: a NaN operand gives NaN, and -0 is less than +0. Bools have only Max, which
// is or, and Min, which is and: bytes other than 0 count as 1, and results are 0 or 1.
package cpu

import (
	"math/bits"
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// Op combines two elements into one. An average is Sum with a division at the end.
type Op uint8

// The operations.
const (
	Sum Op = iota
	Prod
	Min
	Max
)

var opNames = [...]string{"sum", "prod", "min", "max"}

// String is the operation's name: "sum".
func (o Op) String() string {
	if o > Max {
		return "invalid"
	}
	return opNames[o]
}

const (
	pieceBytes = 64 << 10 // bytes between two returns to Go
	maxSources = 16       // how many pointers one call of a kernel takes
	maxDests   = 8
)

// Below these numbers of elements, plain Go finishes before a call into C has begun. For half types it is slower.
const (
	tinyElements = 96
	tinyHalves   = 4
)

// tiny reports whether Go should reduce n elements from each source: there are few, or there are no kernels.
func tiny(t dtype.Type, n, sources int) bool {
	if sources > 2 {
		n *= sources - 1
	}
	if t == dtype.Float16 || t == dtype.BFloat16 {
		return n < tinyHalves || current == levelGo
	}
	return n < tinyElements || current == levelGo
}

// reducible reports whether op is an operation on elements of t.
func reducible(t dtype.Type, op Op) bool {
	return t.Valid() && op <= Max && (t != dtype.Bool || op >= Min)
}

// Reduce sets dst[i] = a[i] op b[i] for n elements. dst may be a, b or both. With stream the stores bypass the caches,
// which pays if dst is larger than the caches. The result is visible to other processors when Reduce returns.
func Reduce(t dtype.Type, op Op, dst, a, b unsafe.Pointer, n int, stream bool) {
	if n <= 0 || !reducible(t, op) {
		return
	}
	if t == dtype.Float32 && op == Sum && n <= 16 {
		addFloat32(dst, a, b, n)
		return
	}
	if tiny(t, n, 2) {
		reduceGo(t, op, dst, a, b, n)
		return
	}
	size := t.Size()
	step := pieceBytes / size
	for i := 0; i < n; i += step {
		at := i * size
		reducePiece(t, op, unsafe.Add(dst, at), unsafe.Add(a, at), unsafe.Add(b, at), min(step, n-i), stream)
	}
}

// ReduceN sets dst[i] = ((srcs[0][i] op srcs[1][i]) op srcs[2][i]) ... for n elements, in one pass over memory. If div
// is larger than 1 it divides the result by div: floats exactly (half types before their one rounding), integers
// truncating toward zero, bools not at all. dst may be one of the sources. stream is as in Reduce.
func ReduceN(t dtype.Type, op Op, dst unsafe.Pointer, srcs []unsafe.Pointer, n, div int, stream bool) {
	dsts := [1]unsafe.Pointer{dst}
	ReduceMulti(t, op, dsts[:], srcs, n, div, stream)
}

// ReduceMulti is ReduceN with the same result stored to every destination, bit for bit. Each destination may be one of
// the sources, but not another destination.
func ReduceMulti(t dtype.Type, op Op, dsts, srcs []unsafe.Pointer, n, div int, stream bool) {
	if n <= 0 || !reducible(t, op) || len(srcs) == 0 || len(dsts) == 0 {
		return
	}
	if t == dtype.Bool {
		div = 1
	}
	if tiny(t, n, len(srcs)) {
		reduceMultiGo(t, op, dsts, srcs, n, div)
		return
	}
	size := t.Size()
	if len(srcs) > maxSources || len(dsts) > maxDests {
		reduceMany(t, op, dsts, srcs, n, div, stream)
		return
	}
	step := pieceBytes / size
	for i := 0; i < n; i += step {
		p := piece{t: t, op: op, at: i * size, n: min(step, n-i), div: div, stream: stream}
		reduceMultiPiece(p, nil, nil, srcs, dsts)
	}
}

// piece is the work of one kernel call, without its operands; at is where the piece begins in them, in bytes.
type piece struct {
	t          dtype.Type
	op         Op
	at, n, div int
	stream     bool
}

// accumulators are aligned for every type.
type accumulators [2 << 10]uint64

// reduceMany handles more operands than one call of a kernel takes, in several calls for each block. The accumulators,
// float32 for half types, stay on its stack between the calls, so half types are rounded only once here too.
func reduceMany(t dtype.Type, op Op, dsts, srcs []unsafe.Pointer, n, div int, stream bool) {
	var acc accumulators
	size := t.Size()
	step := int(unsafe.Sizeof(acc)) / max(size, 4)
	for i := 0; i < n; i += step {
		p := piece{t: t, op: op, at: i * size, n: min(step, n-i), div: div, stream: stream}
		var in *accumulators
		for s := srcs; len(s) > 0; in = &acc {
			k := min(len(s), maxSources)
			reduceMultiPiece(p, unsafe.Pointer(in), unsafe.Pointer(&acc), s[:k], nil)
			s = s[k:]
		}
		for d := dsts; len(d) > 0; {
			k := min(len(d), maxDests)
			reduceMultiPiece(p, unsafe.Pointer(in), nil, nil, d[:k])
			d = d[k:]
		}
	}
}

// Fraction is the smallest power of two that is at least ranks. A sum of half types over that many ranks is carried
// divided by it, because the sum may be too large for the type when the average is not. Rounding such a fraction loses
// no more than rounding the sum itself, as long as it is a normal number.
func Fraction(ranks int) int { return 1 << bits.Len(uint(ranks-1)) }

// AddFractions adds n sums of a half type over as ranks to those over bs ranks, each carried as its Fraction, and
// divides by div: by the Fraction of as + bs, or, for averages, by the number of ranks. It computes in float32 and rounds
// once. For other types it does nothing. dst may be a or b.
func AddFractions(t dtype.Type, dst, a, b unsafe.Pointer, n, as, bs, div int) {
	if n <= 0 || t != dtype.Float16 && t != dtype.BFloat16 {
		return
	}
	scale, after := Fraction(as), Fraction(bs)
	if scale < after {
		a, b, scale, after = b, a, after, scale
	}
	scale /= after
	if div%after == 0 {
		div, after = div/after, 1
	}
	if tiny(t, n, 2) {
		addFractionsGo(t, dst, a, b, n, scale, after, div)
		return
	}
	var acc accumulators
	wide, to := unsafe.Pointer(&acc), [1]unsafe.Pointer{dst}
	first, last := [1]unsafe.Pointer{a}, [1]unsafe.Pointer{b}
	step := int(unsafe.Sizeof(acc)) / 4
	for i := 0; i < n; i += step {
		p := piece{t: t, op: Sum, at: i * t.Size(), n: min(step, n-i), div: div}
		reduceMultiPiece(p, nil, wide, first[:], nil)
		scalePiece(dtype.Float32, wide, wide, p.n, float64(scale))
		if after == 1 {
			reduceMultiPiece(p, wide, nil, last[:], to[:])
			continue
		}
		reduceMultiPiece(p, wide, wide, last[:], nil)
		scalePiece(dtype.Float32, wide, wide, p.n, float64(after))
		reduceMultiPiece(p, wide, nil, nil, to[:])
	}
}

// Scale sets dst[i] = src[i] * factor for n elements. Floats multiply by factor in their own type (half types in
// float32), integers by factor's integer part, wrapping; bools are left alone. dst may be src.
func Scale(t dtype.Type, dst, src unsafe.Pointer, n int, factor float64) {
	if n <= 0 || !t.Valid() || t == dtype.Bool {
		return
	}
	if tiny(t, n, 1) {
		scaleGo(t, dst, src, n, factor)
		return
	}
	size := t.Size()
	step := pieceBytes / size
	for i := 0; i < n; i += step {
		at := i * size
		scalePiece(t, unsafe.Add(dst, at), unsafe.Add(src, at), min(step, n-i), factor)
	}
}

// Copy copies bytes from src to dst. They are the same memory or do not overlap. stream is as in Reduce.
func Copy(dst, src unsafe.Pointer, bytes int, stream bool) {
	for i := 0; i < bytes; i += pieceBytes {
		d, s, n := unsafe.Add(dst, i), unsafe.Add(src, i), min(pieceBytes, bytes-i)
		// Streaming a last piece that is not whole is not worth the call.
		if stream && current != levelGo && n == pieceBytes {
			streamPiece(d, s, n)
		} else {
			copyPiece(d, s, n)
		}
	}
}

// Move is Copy without streaming, for memory that may overlap.
func Move(dst, src unsafe.Pointer, bytes int) {
	if on := uintptr(dst) - uintptr(src); on == 0 || on >= uintptr(bytes) {
		Copy(dst, src, bytes, false)
		return
	}
	for bytes > 0 { // dst begins within src: copy from the end
		n := min(pieceBytes, bytes)
		bytes -= n
		copyPiece(unsafe.Add(dst, bytes), unsafe.Add(src, bytes), n)
	}
}

// copyPiece is a point at which the runtime can stop the goroutine, unlike the assembly inside it: a function that
// calls another one checks its stack first.
//
//go:noinline
func copyPiece(dst, src unsafe.Pointer, n int) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}
