package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// push computes one slice of the result from the sources of the whole team, and writes it to all destinations.
func (k *call) push(srcs, dsts []unsafe.Pointer, how team.BufferLayout) error {
	k.w.Algorithm = "push"
	slice := alignedSlice(k.w.Count, k.n, k.size)
	lo := min(k.me*slice, k.w.Count)
	n := min(lo+slice, k.w.Count) - lo
	if n > 0 {
		for r := range srcs {
			srcs[r], dsts[r] = unsafe.Add(srcs[r], lo*k.size), unsafe.Add(dsts[r], lo*k.size)
		}
		cpu.ReduceMulti(k.w.Type, cpuOps[k.w.Red], dsts, srcs, n, k.div(), !how.InPlace && streams(k.t, k.w.Dst.Bytes()))
	}
	k.t.Progress(1)
	return k.waitTeam(1, "exit")
}
