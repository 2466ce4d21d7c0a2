// Package cpu reduces, scales and copies host memory with the widest instructions that the machine has, waits between
// two looks at a word (package spin), and says which processors and caches the process may use.
//
// Everything here is local and never blocks, and what touches elements never allocates. The memory is the caller's, on
// the Go heap or off it; it must stay valid and, but for concurrent readers of the sources, untouched by others during
// the call. Pointers must be aligned to the element, and an operand must not overlap a destination unless it is exactly
// it, but in Move. Types and operations must be valid and counts not negative; otherwise the functions do nothing.
//
// Long calls come back to Go every 64 KiB, so that they never hold up the garbage collector.
//
// Results do not depend on the level of instructions, bit for bit, but for the sign and payload of a NaN: integers
// wrap; floats are combined in the order given, half types in float32 with one rounding (to nearest even) at the end;
// Min and Max are those of Go: a NaN operand gives NaN, and -0 is less than +0. Of bools Max is or and Min is and: bytes
// other than 0 count as 1, results are 0 or 1, and there are no other operations.
package cpu

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// Op is how two elements become one. An average is Sum with a division at the end.
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
	pieceBytes = 64 << 10 // between two returns to Go
	maxSources = 16       // pointers that one call of a kernel takes
	maxDests   = 8
)

// Below these numbers of elements plain Go is done before a call into C has begun; half types take it longer.
const (
	tinyElements = 96
	tinyHalves   = 4
)

// tiny reports whether n elements from each source are better left to Go, as everything is when there are no kernels.
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

// Reduce sets dst[i] = a[i] op b[i] for n elements. dst may be a, b or both. With stream the result goes past the
// caches, which pays when dst is larger than they are; it is visible to other processors when Reduce returns.
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

// ReduceN sets dst[i] = ((srcs[0][i] op srcs[1][i]) op srcs[2][i]) ... for n elements, in one pass over memory, and
// divides the result by div if div is larger than 1: floats exactly (half types before their one rounding), integers
// truncating toward zero, bools not at all. dst may be one of the sources. stream is as in Reduce.
func ReduceN(t dtype.Type, op Op, dst unsafe.Pointer, srcs []unsafe.Pointer, n, div int, stream bool) {
	dsts := [1]unsafe.Pointer{dst}
	ReduceMulti(t, op, dsts[:], srcs, n, div, stream)
}

// ReduceMulti is ReduceN with the same result, to the bit, stored to every destination. Each destination may be one
// of the sources, but not another destination.
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

// piece is what one call of a kernel is told beside the operands: at is its place in them, in bytes.
type piece struct {
	t          dtype.Type
	op         Op
	at, n, div int
	stream     bool
}

// accumulators are aligned for every type.
type accumulators [2 << 10]uint64

// reduceMany does in rounds what is too much for the arguments of one call. The accumulators, float32 for half types,
// wait on this stack between rounds, so that half types are rounded once here too.
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

// Accumulate sets dst[i] = (sum[i] * scale + x[i]) / div for n elements of a half type, computed in float32 and rounded
// once: a sum that is carried as a fraction of itself cannot overflow before it is divided. Other types are left alone.
// dst may be sum or x.
func Accumulate(t dtype.Type, dst, sum, x unsafe.Pointer, n, scale, div int) {
	if n <= 0 || t != dtype.Float16 && t != dtype.BFloat16 {
		return
	}
	if tiny(t, n, 2) {
		accumulateGo(t, dst, sum, x, n, scale, div)
		return
	}
	var acc accumulators
	first, last, to := [1]unsafe.Pointer{sum}, [1]unsafe.Pointer{x}, [1]unsafe.Pointer{dst}
	step := int(unsafe.Sizeof(acc)) / 4
	for i := 0; i < n; i += step {
		p := piece{t: t, op: Sum, at: i * t.Size(), n: min(step, n-i), div: div}
		reduceMultiPiece(p, nil, unsafe.Pointer(&acc), first[:], nil)
		scalePiece(dtype.Float32, unsafe.Pointer(&acc), unsafe.Pointer(&acc), p.n, float64(scale))
		reduceMultiPiece(p, unsafe.Pointer(&acc), nil, last[:], to[:])
	}
}

// Weigh sets dst[i] = (sum[i] * a + x[i] * b) / (a + b) for n elements of a half type, computed in float32 and rounded
// once: an average of a ranks is carried on to b more. Other types are left alone. dst may be sum or x. It is quick where
// b divides a.
func Weigh(t dtype.Type, dst, sum, x unsafe.Pointer, n, a, b int) {
	switch {
	case n <= 0 || t != dtype.Float16 && t != dtype.BFloat16:
	case a%b == 0:
		Accumulate(t, dst, sum, x, n, a/b, a/b+1)
	case t == dtype.Float16:
		weighHalves(dst, sum, x, n, float32(a), float32(b), dtype.ToF16)
	default:
		weighHalves(dst, sum, x, n, float32(a), float32(b), dtype.ToBF16)
	}
}

// Scale sets dst[i] = src[i] * factor for n elements: floats multiply by factor in their own type (half types in
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

// Copy copies bytes from src to dst, which are the same or do not overlap. stream is as in Reduce.
func Copy(dst, src unsafe.Pointer, bytes int, stream bool) {
	for i := 0; i < bytes; i += pieceBytes {
		d, s, n := unsafe.Add(dst, i), unsafe.Add(src, i), min(pieceBytes, bytes-i)
		// A last piece that is not whole is not worth the call.
		if stream && current != levelGo && n == pieceBytes {
			streamPiece(d, s, n)
		} else {
			copyPiece(d, s, n)
		}
	}
}

// Move is Copy, not streamed, for memory that may overlap.
func Move(dst, src unsafe.Pointer, bytes int) {
	if on := uintptr(dst) - uintptr(src); on == 0 || on >= uintptr(bytes) {
		Copy(dst, src, bytes, false)
		return
	}
	for bytes > 0 { // dst begins within src: from the end
		n := min(pieceBytes, bytes)
		bytes -= n
		copyPiece(unsafe.Add(dst, bytes), unsafe.Add(src, bytes), n)
	}
}

// copyPiece is a call that the runtime can stop at, unlike the assembly inside: a function that calls another one
// checks its stack first.
//
//go:noinline
func copyPiece(dst, src unsafe.Pointer, n int) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}
