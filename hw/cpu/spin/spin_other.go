//go:build !amd64 && !arm64

// Package spin has instructions for words that cores share.
package spin

import (
	"sync/atomic"
	"unsafe"
)

// Pause does nothing on this processor.
func Pause() {}

// Release stores v in w with release order.
func Release(w *atomic.Uint64, v uint64) { w.Store(v) }

// Claim does nothing on this processor.
func Claim(p unsafe.Pointer) {}

// Demote does nothing on this processor.
func Demote(p unsafe.Pointer, n int) {}

// ClaimAll does nothing on this processor.
func ClaimAll(p unsafe.Pointer, n int) {}
