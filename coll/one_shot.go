package coll

import (
	"unsafe"
)

// oneShot reads the sources of the whole team and computes the whole result. No rank's destination may be a source.
func (k *call) oneShot(srcs []unsafe.Pointer) error {
	k.w.Algorithm = "one-shot"
	k.reduce(k.w.Dst.Ptr, srcs, k.w.Count, streams(k.t, k.w.Dst.Bytes()))
	k.t.Progress(1)
	return k.waitTeam(1, "exit")
}
