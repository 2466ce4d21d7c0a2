//go:build !cgo || race

package cpu

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/dtype"
)

// Without C there is only levelGo, which never calls the functions below.

func bestLevel() level { return levelGo }

func reducePiece(dtype.Type, Op, unsafe.Pointer, unsafe.Pointer, unsafe.Pointer, int, bool) {}

func reduceMultiPiece(piece, unsafe.Pointer, unsafe.Pointer, []unsafe.Pointer, []unsafe.Pointer) {}

func scalePiece(dtype.Type, unsafe.Pointer, unsafe.Pointer, int, float64) {}

func streamPiece(unsafe.Pointer, unsafe.Pointer, int) {}
