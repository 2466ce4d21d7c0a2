package coll

import (
	"context"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// Eager collectives are for small data. Each rank's source travels with its descriptor, as the descriptor's payload or
// in the rank's eager slot. So ranks wait only for agreement, and each computes its own result. (Flags beside the data
// in every cache line, as in NCCL's LL protocol, were slower from 128 bytes on: a reader that polls a line before it is
// written takes the line away from its writer.)

// eagerBytes is the size of the largest source: a function of what the team agrees on.
func eagerBytes(t *team.Team, w *team.Work) int {
	n := w.Count * w.Type.Size()
	switch w.Kind {
	case team.KindReduceScatter, team.KindScatter, team.KindAllToAll:
		n *= t.Whole()
	}
	return n
}

// tryEager makes w eager if it is small enough.
func tryEager(t *team.Team, w *team.Work) bool {
	n := eagerBytes(t, w)
	if n > team.PayloadSize && (n > team.EagerBytes || n*t.Size() > t.Tuning().EagerTotal) {
		return false // beyond that, two steps that read less are quicker
	}
	setEager(w, &eagerPath, n)
	return true
}

func setEager(w *team.Work, p *team.Path, bytes int) {
	if bytes > team.PayloadSize {
		w.Eager.Bytes = bytes
	}
	w.Path = p
	w.SrcBuf.Why, w.DstBuf.Why = "small enough to travel with the descriptor", "its own rank alone writes it"
}

func offerEager(t *team.Team, w *team.Work) {
	if w.Src.Len > 0 {
		load(w, slot(t, w, t.Rank()), w.Src.Ptr, w.Src.Len)
	}
}

// slot is where a rank's source travels.
func slot(t *team.Team, w *team.Work, rank int) unsafe.Pointer {
	switch {
	case w.Eager.Fused:
		return unsafe.Add(t.Eager(rank), w.Eager.At)
	case eagerBytes(t, w) <= team.PayloadSize:
		return t.Payload(rank)
	}
	return t.Eager(rank)
}

func runEager(ctx context.Context, t *team.Team, w *team.Work) error {
	if w.Dst.Ptr == nil || w.Count == 0 {
		return nil
	}
	k := newCall(ctx, t, w)
	bytes := w.Count * k.size
	switch w.Kind {
	case team.KindAllReduce, team.KindReduce, team.KindReduceScatter:
		off := 0
		if w.Kind == team.KindReduceScatter {
			off = k.me * bytes
		}
		srcs := t.Scratch()
		for r := range srcs {
			srcs[r] = unsafe.Add(slot(t, w, r), off)
		}
		k.reduce(w.Dst.Ptr, srcs, w.Count, false)
	case team.KindAllGather, team.KindGather:
		for r := 0; r < k.n; r++ {
			cpu.Copy(unsafe.Add(w.Dst.Ptr, r*bytes), slot(t, w, r), bytes, false)
		}
	case team.KindBroadcast:
		cpu.Copy(w.Dst.Ptr, slot(t, w, w.Root), bytes, false)
	case team.KindScatter:
		cpu.Copy(w.Dst.Ptr, unsafe.Add(slot(t, w, w.Root), k.me*bytes), bytes, false)
	case team.KindAllToAll:
		for r := 0; r < k.n; r++ {
			cpu.Copy(unsafe.Add(w.Dst.Ptr, r*bytes), unsafe.Add(slot(t, w, r), k.me*bytes), bytes, false)
		}
	}
	return nil
}
