package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/engine"
)

// Eager collectives are for small data: the source of each of the team travels with its descriptor, as the
// descriptor's payload or in the rank's eager slot, so that agreement is all the waiting there is, and each computes
// its own result. (Flags beside the data in every cache line, as NCCL's LL protocol has them, were tried: looking at
// lines before they are written takes them away from their writer, and from 128 bytes on it was slower.)

// eagerBytes is the size of the largest source: a function of what the team agrees on.
func eagerBytes(c *engine.Comm, w *engine.Work) int {
	n := w.Count * w.Type.Size()
	switch w.Kind {
	case engine.KindReduceScatter, engine.KindScatter, engine.KindAllToAll:
		n *= c.Size()
	}
	return n
}

// tryEager makes w eager if it is small enough.
func tryEager(c *engine.Comm, w *engine.Work) bool {
	n := eagerBytes(c, w)
	if n > engine.PayloadSize && (n > engine.EagerBytes || n*c.Size() > c.Tuning().EagerTotal) {
		return false // beyond that, two steps with less to read cost less
	}
	setEager(w, &eagerPath, n)
	return true
}

func setEager(w *engine.Work, p *engine.Path, bytes int) {
	if bytes > engine.PayloadSize {
		w.EagerBytes = bytes
	}
	w.Path = p
	w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with the descriptor", "its own rank alone writes it"
}

func offerEager(c *engine.Comm, w *engine.Work) {
	if w.Src.Len > 0 {
		load(w, slot(c, w, c.Rank()), w.Src.Ptr, w.Src.Len)
	}
}

// slot is where the source of one of the team travels.
func slot(c *engine.Comm, w *engine.Work, rank int) unsafe.Pointer {
	if eagerBytes(c, w) <= engine.PayloadSize {
		return c.Payload(rank)
	}
	return c.Eager(rank)
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
			srcs[r] = unsafe.Add(slot(c, w, r), off)
		}
		k.reduce(w.Dst.Ptr, srcs, w.Count, false)
	case engine.KindAllGather, engine.KindGather:
		for r := 0; r < k.n; r++ {
			cpu.Copy(unsafe.Add(w.Dst.Ptr, r*bytes), slot(c, w, r), bytes, false)
		}
	case engine.KindBroadcast:
		cpu.Copy(w.Dst.Ptr, slot(c, w, w.Root), bytes, false)
	case engine.KindScatter:
		cpu.Copy(w.Dst.Ptr, unsafe.Add(slot(c, w, w.Root), k.me*bytes), bytes, false)
	case engine.KindAllToAll:
		for r := 0; r < k.n; r++ {
			cpu.Copy(unsafe.Add(w.Dst.Ptr, r*bytes), unsafe.Add(slot(c, w, r), k.me*bytes), bytes, false)
		}
	}
	return nil
}
