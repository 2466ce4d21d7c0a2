package coll

import (
	"fmt"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw/cpu"
	"github.com/ubcoll/ubcoll/internal/team"
)

// In operations with vectors, each rank of the team offers a row with its descriptor: how many elements it sends to
// each rank, and how many it expects from each. So every reader knows where its part of a source begins, and all ranks
// check all pairs and come to the same verdict. A word behind the row says whether the rank's source travels with it,
// as small sources do, and the source follows; ranks may differ in this.
const maxVectorRanks = (team.EagerBytes - 8) / 16

func rows(t *team.Team, rank int) (send, recv []uint64) {
	n := t.Size()
	p := unsafe.Slice((*uint64)(t.Eager(rank)), 2*n)
	return p[:n], p[n:]
}

// carried points to the word that says whether a rank's source travels with its rows: 0 or 1.
func carried(t *team.Team, rank int) *int64 {
	return (*int64)(unsafe.Add(t.Eager(rank), 16*t.Size()))
}

// carriedAt is the offset of the source in the eager slot.
func carriedAt(t *team.Team) int { return (16*t.Size() + 8 + 63) &^ 63 }

// carries reports whether this rank's source is small enough to travel with the rows.
func carries(t *team.Team, w *team.Work) bool {
	n := w.Src.Bytes()
	return n <= team.EagerBytes-carriedAt(t) && n*t.Size() <= t.Tuning().EagerTotal
}

// acquireVector also writes this rank's rows. A graph's launch may find here that the counts are wrong.
func acquireVector(t *team.Team, w *team.Work) error {
	send, recv := rows(t, t.Rank())
	if err := w.Counts(t.Rank(), send, recv); err != nil {
		return err
	}
	if !carries(t, w) {
		return acquire(t, w)
	}
	w.SrcBuf.Why = "small enough to travel with the descriptor"
	if err := t.Acquire(&w.Dst, &w.DstBuf, w.Graph); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

func offerSource(t *team.Team, w *team.Work) {
	*carried(t, t.Rank()) = 0
	if carries(t, w) {
		*carried(t, t.Rank()) = 1
		cpu.Copy(unsafe.Add(t.Eager(t.Rank()), carriedAt(t)), w.Src.Ptr, w.Src.Bytes(), false)
	}
}

func checkRows(t *team.Team, w *team.Work) (int, error) {
	for s := 0; s < t.Size(); s++ {
		send, _ := rows(t, s)
		for d := 0; d < t.Size(); d++ {
			_, recv := rows(t, d)
			if send[d] != recv[s] {
				return t.Name(d), countsDiffer(t.Name(s), t.Name(d), send[d], recv[s])
			}
		}
	}
	return -1, nil
}

// isVector reports whether an operation has vectors of counts.
func isVector(k team.OpKind) bool {
	switch k {
	case team.KindAllGatherV, team.KindGatherV, team.KindScatterV, team.KindAllToAllV:
		return true
	}
	return false
}
