package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/engine"
)

// Eager collectives are for small data: each rank's source travels with its descriptor, in the first line of it or in
// the rank's eager slot, so that agreement is all the waiting there is. Each rank then computes its own result.

func offerEager(c *engine.Comm, w *engine.Work) {
	if w.Src.Len > 0 {
		load(w, eagerSlot(c, w, c.Rank()), w.Src.Ptr, w.Src.Len)
	}
}

// eagerSlot is where a rank's source travels: a function of what the ranks agree on.
func eagerSlot(c *engine.Comm, w *engine.Work, rank int) unsafe.Pointer {
	if eagerBytes(c, w) <= engine.PayloadSize {
		return c.Payload(rank)
	}
	return c.Eager(rank)
}

// eagerBytes is the size of the largest source.
func eagerBytes(c *engine.Comm, w *engine.Work) int {
	n := w.Count * w.Type.Size()
	switch w.Kind {
	case engine.KindReduceScatter, engine.KindScatter, engine.KindAllToAll:
		n *= c.Size()
	}
	return n
}

func runEager(ctx context.Context, c *engine.Comm, w *engine.Work) error {
	if w.Dst.Ptr == nil || w.Count == 0 {
		return nil
	}
	k := newCall(ctx, c, w)
	bytes := w.Count * k.size
	switch w.Kind {
	case engine.KindAllReduce, engine.KindReduce, engine.KindReduceScatter:
		off := 0
		if w.Kind == engine.KindReduceScatter {
			off = k.me * bytes
		}
		srcs := c.Scratch()
		for r := range srcs {
			srcs[r] = unsafe.Add(eagerSlot(c, w, r), off)
		}
		k.reduce(w.Dst.Ptr, srcs, w.Count, false)
	case engine.KindAllGather, engine.KindGather:
		for r := 0; r < k.n; r++ {
			cpu.Copy(unsafe.Add(w.Dst.Ptr, r*bytes), eagerSlot(c, w, r), bytes, false)
		}
	case engine.KindBroadcast:
		cpu.Copy(w.Dst.Ptr, eagerSlot(c, w, w.Root), bytes, false)
	case engine.KindScatter:
		cpu.Copy(w.Dst.Ptr, unsafe.Add(eagerSlot(c, w, w.Root), k.me*bytes), bytes, false)
	case engine.KindAllToAll:
		for r := 0; r < k.n; r++ {
			cpu.Copy(unsafe.Add(w.Dst.Ptr, r*bytes), unsafe.Add(eagerSlot(c, w, r), k.me*bytes), bytes, false)
		}
	}
	return nil
}
