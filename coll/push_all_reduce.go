package coll

import (
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// push computes one slice of the result from the sources of the whole team, and writes it to all destinations.
func (c *call) push(srcs, dsts []unsafe.Pointer, how team.BufferLayout) error {
	c.w.Algorithm = "push"
	slice := alignedSlice(c.w.Count, c.n, c.size)
	lo := min(c.me*slice, c.w.Count)
	n := min(lo+slice, c.w.Count) - lo
	if n > 0 {
		for r := range srcs {
			srcs[r], dsts[r] = unsafe.Add(srcs[r], lo*c.size), unsafe.Add(dsts[r], lo*c.size)
		}
		cpu.ReduceMulti(c.w.Type, c.w.Red.Op(), dsts, srcs, n, c.div(), !how.InPlace && streams(c.t, c.w.Dst.Bytes()))
	}
	c.t.Progress(1)
	return c.waitTeam(1, "exit")
}
