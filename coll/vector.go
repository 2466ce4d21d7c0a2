package coll

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// AllGatherV is [AllGather] with lengths that differ: rank r contributes counts[r] elements, and dst holds them in rank
// order. dst is as long as the sum of counts, and src as long as this rank's entry. counts is the same on all ranks;
// the caller must not change it until the operation is done. In place if src is this rank's part of dst.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if counts or type differ between ranks; ErrArgument if counts does not
// have one entry, 0 or more, for each rank, or dst and src do not fit it, or overlap otherwise; and the package's usual
// errors: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source:
// MPI_Allgatherv (MPI-4.1, 6.7).
func AllGatherV(ctx context.Context, c *ubcoll.Comm, dst ubcoll.Vec, counts []int, src ubcoll.Vec) error {
	w, err := begin(c, team.KindAllGatherV, dst, src, ubcoll.Op{}, 0)
	if err != nil {
		return err
	}
	w.RecvCounts = counts
	total, mine, before, err := sumCounts(counts, c, "counts")
	if w.Err = err; err == nil {
		w.Err = check(w, total, mine, before*w.Type.Size())
	}
	return end(ctx, c, w)
}

// GatherV is [Gather] with lengths that differ: rank r contributes counts[r] elements, and root's dst holds them in
// rank order. dst is as long as the sum of counts, and src as long as this rank's entry. counts and dst matter only on
// root, which must not change counts until the operation is done. In place if root's src is its part of dst.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if type or root differ between ranks, or a rank's src is not as long as
// its entry in root's counts; ErrArgument if counts does not have one entry, 0 or more, for each rank, root's dst or
// src do not fit it, or overlap otherwise, or root is no rank; and the package's usual errors: ErrStale, ErrLimit,
// ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source: MPI_Gatherv (MPI-4.1, 6.5).
func GatherV(ctx context.Context, c *ubcoll.Comm, dst ubcoll.Vec, counts []int, src ubcoll.Vec, root int) error {
	w, err := begin(c, team.KindGatherV, dst, src, ubcoll.Op{}, root)
	if err != nil {
		return err
	}
	if c.Rank() != root {
		w.Dst = team.Vec{Type: w.Type}
		w.Err = check(w, 0, w.Src.Len, 0)
		return end(ctx, c, w)
	}
	w.RecvCounts = counts
	total, mine, before, err := sumCounts(counts, c, "counts")
	if w.Err = err; err == nil {
		w.Err = check(w, total, mine, before*w.Type.Size())
	}
	return end(ctx, c, w)
}

// ScatterV is [Scatter] with lengths that differ: rank r gets counts[r] elements, which root's src holds in rank order.
// src is as long as the sum of counts, and dst as long as this rank's entry. counts and src matter only on root, which
// must not change counts until the operation is done. In place if root's dst is its part of src.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if type or root differ between ranks, or a rank's dst is not as long as
// its entry in root's counts; ErrArgument if counts does not have one entry, 0 or more, for each rank, root's src or
// dst do not fit it, or overlap otherwise, or root is no rank; and the package's usual errors: ErrStale, ErrLimit,
// ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source: MPI_Scatterv (MPI-4.1, 6.6).
func ScatterV(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, counts []int, root int) error {
	w, err := begin(c, team.KindScatterV, dst, src, ubcoll.Op{}, root)
	if err != nil {
		return err
	}
	w.Type = dst.Type()
	if c.Rank() != root {
		w.Src = team.Vec{Type: w.Type}
		w.Err = check(w, w.Dst.Len, 0, 0)
		return end(ctx, c, w)
	}
	w.SendCounts = counts
	total, mine, before, err := sumCounts(counts, c, "counts")
	if w.Err = err; err == nil {
		w.Err = check(w, mine, total, -before*w.Type.Size())
	}
	return end(ctx, c, w)
}

// AllToAllV is [AllToAll] with lengths that differ: sendCounts[d] elements go to rank d, and recvCounts[s] come from
// rank s; src and dst hold them in rank order. Rank s's sendCounts[d] must equal rank d's recvCounts[s]. The caller
// must not change the counts until the operation is done. Not in place.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if the type differs between ranks, or a pair's two counts differ;
// ErrArgument if the counts do not have one entry, 0 or more, for each rank, or dst and src do not fit them, or
// overlap; and the package's usual errors: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted
// and the context's. Source: MPI_Alltoallv (MPI-4.1, 6.8), nccl-tests' alltoallv.
func AllToAllV(ctx context.Context, c *ubcoll.Comm, dst ubcoll.Vec, recvCounts []int, src ubcoll.Vec, sendCounts []int) error {
	w, err := begin(c, team.KindAllToAllV, dst, src, ubcoll.Op{}, 0)
	if err != nil {
		return err
	}
	w.SendCounts, w.RecvCounts = sendCounts, recvCounts
	recv, _, _, err := sumCounts(recvCounts, c, "recvCounts")
	if w.Err = err; err == nil {
		var send int
		if send, _, _, w.Err = sumCounts(sendCounts, c, "sendCounts"); w.Err == nil {
			w.Err = check(w, recv, send, notInPlace)
		}
	}
	return end(ctx, c, w)
}

// sumCounts checks a vector of counts and returns its sum, this rank's entry, and the sum of the entries before it.
func sumCounts(counts []int, c *ubcoll.Comm, name string) (total, mine, before int, err error) {
	if len(counts) != c.Size() {
		return 0, 0, 0, fmt.Errorf("%s has %d entries for %d ranks: %w", name, len(counts), c.Size(), fault.ErrArgument)
	}
	for r, n := range counts {
		if n < 0 || n > team.MaxCount {
			return 0, 0, 0, fmt.Errorf("%s[%d] is %d: %w", name, r, n, fault.ErrArgument)
		}
		if r == c.Rank() {
			mine, before = n, total
		}
		total += n
	}
	return total, mine, before, nil
}
