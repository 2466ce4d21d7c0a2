package coll

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/team"
)

// AllGatherV is [AllGather] with lengths that differ: counts[r] elements come from rank r, one after the other in dst,
// which has as many as counts in all; src has this rank's. counts is the same on all ranks; the caller leaves it alone
// until it is done. In place when src is this rank's part of dst.
//
// Collective and blocking, queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if counts or type differ between ranks; ErrArgument if counts has not
// one entry, 0 or more, for each rank, or dst and src do not fit it, or overlap in another way; and the usual ones of
// the package: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and a context's. Source:
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

// GatherV is [Gather] with lengths that differ: counts[r] elements come from rank r, one after the other in root's dst,
// which has as many as counts in all; src has this rank's. counts and dst matter on root alone, which leaves counts
// alone until it is done. In place when root's src is its part of dst.
//
// Collective and blocking, queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if type or root differ between ranks, or a rank's src is not as long as
// root's counts have it; ErrArgument if counts has not one entry, 0 or more, for each rank, root's dst or src do not
// fit it, or overlap in another way, or root is no rank; and the usual ones of the package: ErrStale, ErrLimit,
// ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and a context's. Source: MPI_Gatherv (MPI-4.1, 6.5).
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

// ScatterV is [Scatter] with lengths that differ: counts[r] elements go to rank r, one after the other in root's src,
// which has as many as counts in all; dst has this rank's. counts and src matter on root alone, which leaves counts
// alone until it is done. In place when root's dst is its part of src.
//
// Collective and blocking, queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if type or root differ between ranks, or a rank's dst is not as long as
// root's counts have it; ErrArgument if counts has not one entry, 0 or more, for each rank, root's src or dst do not
// fit it, or overlap in another way, or root is no rank; and the usual ones of the package: ErrStale, ErrLimit,
// ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and a context's. Source: MPI_Scatterv (MPI-4.1, 6.6).
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

// AllToAllV is [AllToAll] with lengths that differ: sendCounts[d] elements go to rank d, one after the other in src,
// and recvCounts[s] come from rank s, one after the other in dst. Rank s's sendCounts[d] equals rank d's recvCounts[s].
// The caller leaves the counts alone until it is done. Not in place.
//
// Collective and blocking, queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if the type or such a pair of counts differ between ranks; ErrArgument
// if the counts have not one entry, 0 or more, for each rank, or dst and src do not fit them, or overlap; and the usual
// ones of the package: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and a context's.
// Source: MPI_Alltoallv (MPI-4.1, 6.8), nccl-tests' alltoallv.
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

// sumCounts checks a vector of counts: their sum, this rank's, and the sum of those before it.
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
