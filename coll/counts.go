package coll

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/engine"
	"github.com/ubcoll/ubcoll/internal/fault"
)

// What each of the team offers with its descriptor in the operations with vectors: how many elements it sends to each
// of them, and how many it expects from each. So peers know where in its source their part begins, and all check all
// pairs and come to the same verdict. Behind these rows stands whether the source travels with them, and the source if
// it does: if it is small, which may be the case on some ranks and not on others.
const maxVectorRanks = (engine.EagerBytes - 8) / 16

func rows(c *engine.Comm, rank int) (send, recv []uint64) {
	n := c.Size()
	p := unsafe.Slice((*uint64)(c.Eager(rank)), 2*n)
	return p[:n], p[n:]
}

// carried points to the word that says whether a rank's source travels with its rows: 0 or 1.
func carried(c *engine.Comm, rank int) *int64 {
	return (*int64)(unsafe.Add(c.Eager(rank), 16*c.Size()))
}

// carriedAt is where such a source begins in the eager slot.
func carriedAt(c *engine.Comm) int { return (16*c.Size() + 8 + 63) &^ 63 }

// carries reports whether this rank's source is small enough to travel with the rows.
func carries(c *engine.Comm, w *engine.Work) bool {
	n := w.Src.Bytes()
	return n <= engine.EagerBytes-carriedAt(c) && n*c.Size() <= c.Tuning().EagerTotal
}

// acquireVector also offers the rows, which a graph's launch can find to be wrong.
func acquireVector(c *engine.Comm, w *engine.Work) error {
	send, recv := rows(c, c.Rank())
	if err := w.Counts(c.Rank(), send, recv); err != nil {
		return err
	}
	if !carries(c, w) {
		return acquire(c, w)
	}
	w.SrcBuf.Why = "small enough to travel with the descriptor"
	if err := c.Acquire(&w.Dst, &w.DstBuf, w.Graph); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

func offerSource(c *engine.Comm, w *engine.Work) {
	*carried(c, c.Rank()) = 0
	if carries(c, w) {
		*carried(c, c.Rank()) = 1
		cpu.Copy(unsafe.Add(c.Eager(c.Rank()), carriedAt(c)), w.Src.Ptr, w.Src.Bytes(), false)
	}
}

func checkRows(c *engine.Comm, w *engine.Work) (int, error) {
	for s := 0; s < c.Size(); s++ {
		send, _ := rows(c, s)
		for d := 0; d < c.Size(); d++ {
			_, recv := rows(c, d)
			if send[d] != recv[s] {
				return d, fmt.Errorf("rank %d expects %d elements from rank %d, which sends %d: %w", d, recv[s], s, send[d],
					fault.ErrMismatch)
			}
		}
	}
	return -1, nil
}

// isVector reports whether an operation has vectors of counts.
func isVector(k engine.Kind) bool {
	switch k {
	case engine.KindAllGatherV, engine.KindGatherV, engine.KindScatterV, engine.KindAllToAllV:
		return true
	}
	return false
}
