//go:build cgo && !race

package cpu

/*
#cgo CFLAGS: -std=c11 -O3 -Wall
#cgo noescape ubc_reduce
#cgo nocallback ubc_reduce
#cgo noescape ubc_reduce2
#cgo nocallback ubc_reduce2
#cgo noescape ubc_scale
#cgo nocallback ubc_scale
#cgo noescape ubc_stream
#cgo nocallback ubc_stream
#include "cpu.h"
*/
import "C"

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

func bestLevel() level { return level(C.ubc_best()) }

// ptr returns a pointer to bytes, for cgo's pointer check: behind an unsafe.Pointer, it would search the whole object
// for Go pointers, and panic if the object has some beside the elements. The kernels touch elements only.
func ptr(p unsafe.Pointer, at int) *C.uint8_t { return (*C.uint8_t)(unsafe.Add(p, at)) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func reducePiece(t dtype.Type, op Op, dst, a, b unsafe.Pointer, n int, stream bool) {
	C.ubc_reduce2(C.int(current), C.int(t), C.int(op), C.long(n), flag(stream), ptr(dst, 0), ptr(a, 0), ptr(b, 0))
}

// reduceMultiPiece reduces up to maxSources sources. It starts from the accumulators in, unless in is nil. The result
// goes to the accumulators out or, if out is nil, to up to maxDests destinations.
func reduceMultiPiece(p piece, in, out unsafe.Pointer, srcs, dsts []unsafe.Pointer) {
	var s [maxSources]*C.uint8_t
	var d [maxDests]*C.uint8_t
	for i, x := range srcs {
		s[i] = ptr(x, p.at)
	}
	for i, x := range dsts {
		d[i] = ptr(x, p.at)
	}
	C.ubc_reduce(C.int(current), C.int(p.t), C.int(p.op), C.long(p.n), C.long(p.div), flag(p.stream),
		ptr(in, 0), ptr(out, 0),
		C.int(len(srcs)), s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7],
		s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15],
		C.int(len(dsts)), d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7])
}

func scalePiece(t dtype.Type, dst, src unsafe.Pointer, n int, factor float64) {
	C.ubc_scale(C.int(current), C.int(t), C.long(n), C.double(factor), C.uint64_t(integerFactor(factor)),
		ptr(dst, 0), ptr(src, 0))
}

func streamPiece(dst, src unsafe.Pointer, n int) {
	C.ubc_stream(C.int(current), ptr(dst, 0), ptr(src, 0), C.long(n))
}
