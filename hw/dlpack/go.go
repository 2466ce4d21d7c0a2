//go:build !cgo

package dlpack

import "unsafe"

const canDelete = false

// callDeleter is not called: Read refuses tensors with deleters.
func callDeleter(unsafe.Pointer) { panic("dlpack: a deleter in a build without cgo") }
