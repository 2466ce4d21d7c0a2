package coll

import (
	"context"

	"github.com/ubcoll/ubcoll/internal/team"
)

// runReduce runs the reductions above eager size.
func runReduce(ctx context.Context, t *team.Team, w *team.Work) error {
	if w.Count == 0 {
		return nil
	}
	k := newCall(ctx, t, w)
	srcBytes, dstBytes := w.Count*k.size, w.Count*k.size
	if w.Kind == team.KindReduceScatter {
		srcBytes *= k.n
	}
	if w.Kind != team.KindAllReduce {
		dstBytes = 0 // no rank reads or writes another rank's destination
	}
	srcs, dsts, how, err := t.Buffers(srcBytes, dstBytes)
	if err != nil {
		return err
	}
	if w.Kind == team.KindAllReduce {
		switch allReduceAlgorithm(t, srcBytes, how) {
		case byOneShot:
			return k.oneShot(srcs)
		case byPush:
			return k.push(srcs, dsts, how)
		}
	}
	return k.twoShot(srcs, dsts, how)
}

// alignedSlice is the length of the slices when count elements are cut into n slices of whole cache lines.
func alignedSlice(count, n, size int) int {
	line := 64/size - 1
	return ((count+n-1)/n + line) &^ line
}
