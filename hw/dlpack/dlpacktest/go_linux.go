//go:build !cgo

package dlpacktest

// Deletes reports whether tensors have deleters.
const Deletes = false

func deleter() uintptr { return 0 }
