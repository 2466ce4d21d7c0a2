// Package coll has the collectives. Every rank of the communicator must call the same ones in the same order with the
// same count, type, operation and root; otherwise all ranks return an error that names the rank that differs. Lengths
// and counts are in elements, and may be zero.
//
// Collectives block until this rank's part is done and the caller may use its buffers again; on a view made by
// [ubcoll.Comm.On] they are queued instead. All memory works, and ranks may differ in this: peers read and write
// registered buffers directly, and Go slices go through staging memory. A collective does not write to its source.
// Source and destination must not overlap, except in place as each function describes. Data that is moved, not reduced,
// arrives bit for bit, bools included. A communicator runs one collective at a time ([ubcoll.ErrBusy]). "Groups" below
// are those of [ubcoll.Group]; "capture" is that of [github.com/ubcoll/ubcoll/graph.Capture].
//
// All memory of an operation, and its stream, must be on the host, or on this rank's device ([ubcoll.Comm.GPU]), alike
// on all ranks. On devices kernels do the work. Blocking calls run on a stream of the communicator, which is not
// ordered after work that the program has queued on its own streams.
//
// Between hosts, what is on devices is copied to page-locked host memory, travels as host memory does, and is copied back,
// part by part: 4 MiB at a time, but for the operations with counts, which take page-locked memory as large as their
// buffers. That memory is kept for later operations, and counts under UBCOLL_MAX_PINNED ([ubcoll.ErrLimit]). Operations on
// a stream of a device return [ubcoll.ErrNotSupported] there, on all ranks. If an operation between hosts is refused, or the ranks differ, some hosts
// may already have written to its destinations, but for the operations with counts. Floating sums have the same bits on
// all ranks that get them, and whenever the same ranks on the same hosts repeat the call; on other hosts they may be
// combined in another order.
//
// The memory stays the caller's, who must not touch it until the operation is done. The same holds for vectors of
// counts. Launches of package graph's graphs read these vectors again; replays of a CUDA graph that other code has
// captured use the counts of the call. [ubcoll.Comm.LastOp] says which algorithm an operation used, and why a buffer
// was staged.
//
// The usual errors are: [ubcoll.ErrArgument] for a Vec that is not valid, memory of a device that is not this rank's,
// or a stream on another device than the memory; [ubcoll.ErrStale] for freed memory; [ubcoll.ErrLimit] for 2^39
// elements or more, and for more than 1023 ranks on one host in the operations with counts; the error of a context that had ended
// before the call. If one rank has such an error, or ranks differ ([ubcoll.ErrMismatch]), all ranks return the error
// before data moves, and the communicator stays usable; on devices, small operations may have written to dst by then.
// [ubcoll.ErrPeerLost], [ubcoll.ErrTimeout], [ubcoll.ErrAborted] and a context that ends during the call break the
// communicator, and leave dst undefined. [ubcoll.ErrBusy] and [ubcoll.ErrClosed] concern this rank alone and change
// nothing. For operations on a stream, [ubcoll.Stream.Sync] returns these errors; in a group, Group does.
package coll

import (
	"context"
	"fmt"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/dtype"
	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/inside"
	"github.com/ubcoll/ubcoll/internal/team"
)

// AllReduce combines src of all ranks element by element with op and stores the result in dst on every rank, bitwise
// the same. dst and src have the same length and type. In place if they are the same memory.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length, type or op differ between ranks; ErrArgument if dst and src
// do not fit each other or overlap otherwise, if op is the zero Op, or if op is not Min or Max on bools; and the
// package's usual errors: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the
// context's. Source: MPI_Allreduce (MPI-4.1, 6.9.6), ncclAllReduce.
func AllReduce(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, op ubcoll.Op) error {
	w, err := begin(c, team.KindAllReduce, dst, src, op, 0)
	if err != nil {
		return err
	}
	w.Count = w.Src.Len
	w.Err = check(w, w.Count, w.Count, 0)
	return end(ctx, c, w)
}

// ReduceScatter combines src of all ranks element by element with op and stores slice r of the result in dst of rank r.
// src is Size times as long as dst, and of the same type. In place if dst is this rank's slice of src.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length, type or op differ between ranks; ErrArgument if dst and src
// do not fit each other or overlap otherwise, if op is the zero Op, or if op is not Min or Max on bools; and the
// package's usual errors: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the
// context's. Source: MPI_Reduce_scatter_block (MPI-4.1, 6.10.1), ncclReduceScatter.
func ReduceScatter(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, op ubcoll.Op) error {
	w, err := begin(c, team.KindReduceScatter, dst, src, op, 0)
	if err != nil {
		return err
	}
	w.Count = w.Dst.Len
	w.Err = check(w, w.Count, w.Count*c.Size(), -c.Rank()*w.Dst.Bytes())
	return end(ctx, c, w)
}

// Reduce combines src of all ranks element by element with op and stores the result in root's dst, which has src's
// length and type. The other ranks' dst is not used and may be the zero Vec. In place if root's dst is its src.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length, type, op or root differ between ranks; ErrArgument if root's
// dst and src do not fit each other or overlap otherwise, if root is no rank, if op is the zero Op, or if op is not Min
// or Max on bools; and the package's usual errors: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout,
// ErrAborted and the context's. Source: MPI_Reduce (MPI-4.1, 6.9.1), ncclReduce.
func Reduce(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, op ubcoll.Op, root int) error {
	w, err := begin(c, team.KindReduce, dst, src, op, root)
	if err != nil {
		return err
	}
	w.Count = w.Src.Len
	if c.Rank() != root {
		w.Dst = team.Vec{Type: w.Type}
		w.Err = check(w, 0, w.Count, 0)
	} else {
		w.Err = check(w, w.Count, w.Count, 0)
	}
	return end(ctx, c, w)
}

// AllGather stores src of rank r in slice r of dst, on every rank. dst is Size times as long as src, and of the same
// type. In place if src is this rank's slice of dst.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length or type differ between ranks; ErrArgument if dst and src do
// not fit each other or overlap otherwise; and the package's usual errors: ErrStale, ErrLimit, ErrBusy, ErrClosed,
// ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source: MPI_Allgather (MPI-4.1, 6.7), ncclAllGather.
func AllGather(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
	w, err := begin(c, team.KindAllGather, dst, src, ubcoll.Op{}, 0)
	if err != nil {
		return err
	}
	w.Count = w.Src.Len
	w.Err = check(w, w.Count*c.Size(), w.Count, c.Rank()*w.Src.Bytes())
	return end(ctx, c, w)
}

// Broadcast copies root's buf to buf of every rank. All have the same length and type.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length, type or root differ between ranks; ErrArgument if root is no
// rank; and the package's usual errors: ErrStale, ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and
// the context's. Source: MPI_Bcast (MPI-4.1, 6.4), ncclBroadcast.
func Broadcast(ctx context.Context, c *ubcoll.Comm, buf ubcoll.Vec, root int) error {
	w, err := begin(c, team.KindBroadcast, buf, buf, ubcoll.Op{}, root)
	if err != nil {
		return err
	}
	w.Count = buf.Len()
	w.Err = check(w, w.Count, w.Count, 0)
	if c.Rank() == root {
		w.Dst = team.Vec{Type: w.Type}
	} else {
		w.Src = team.Vec{Type: w.Type}
	}
	return end(ctx, c, w)
}

// Gather stores src of rank r in slice r of root's dst, which is Size times as long as src, and of the same type. The
// other ranks' dst is not used and may be the zero Vec. In place if root's src is its slice of dst.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length, type or root differ between ranks; ErrArgument if root's dst
// and src do not fit each other or overlap otherwise, or root is no rank; and the package's usual errors: ErrStale,
// ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source: MPI_Gather (MPI-4.1,
// 6.5), nccl-tests' gather.
func Gather(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, root int) error {
	w, err := begin(c, team.KindGather, dst, src, ubcoll.Op{}, root)
	if err != nil {
		return err
	}
	w.Count = w.Src.Len
	if c.Rank() != root {
		w.Dst = team.Vec{Type: w.Type}
		w.Err = check(w, 0, w.Count, 0)
	} else {
		w.Err = check(w, w.Count*c.Size(), w.Count, root*w.Src.Bytes())
	}
	return end(ctx, c, w)
}

// Scatter stores slice r of root's src in dst of rank r. Root's src is Size times as long as dst, and of the same type.
// The other ranks' src is not used and may be the zero Vec. In place if root's dst is its slice of src.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length, type or root differ between ranks; ErrArgument if root's dst
// and src do not fit each other or overlap otherwise, or root is no rank; and the package's usual errors: ErrStale,
// ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source: MPI_Scatter (MPI-4.1,
// 6.6), nccl-tests' scatter.
func Scatter(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec, root int) error {
	w, err := begin(c, team.KindScatter, dst, src, ubcoll.Op{}, root)
	if err != nil {
		return err
	}
	w.Type, w.Count = dst.Type(), w.Dst.Len
	if c.Rank() != root {
		w.Src = team.Vec{Type: w.Type}
		w.Err = check(w, w.Count, 0, 0)
	} else {
		w.Err = check(w, w.Count, w.Count*c.Size(), -root*w.Dst.Bytes())
	}
	return end(ctx, c, w)
}

// AllToAll stores slice d of rank s's src in slice s of rank d's dst. dst and src have the same type and the same
// length, a multiple of Size. Not in place.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. ErrMismatch if length or type differ between ranks; ErrArgument if dst and src do
// not fit each other, overlap, or have a length that is no multiple of Size; and the package's usual errors: ErrStale,
// ErrLimit, ErrBusy, ErrClosed, ErrPeerLost, ErrTimeout, ErrAborted and the context's. Source: MPI_Alltoall (MPI-4.1,
// 6.8), nccl-tests' alltoall.
func AllToAll(ctx context.Context, c *ubcoll.Comm, dst, src ubcoll.Vec) error {
	w, err := begin(c, team.KindAllToAll, dst, src, ubcoll.Op{}, 0)
	if err != nil {
		return err
	}
	w.Count = w.Src.Len / c.Size()
	w.Err = check(w, w.Src.Len, w.Src.Len, notInPlace)
	if w.Err == nil && w.Src.Len%c.Size() != 0 {
		w.Err = fmt.Errorf("%d elements for %d ranks do not come out even: %w", w.Src.Len, c.Size(), fault.ErrArgument)
	}
	return end(ctx, c, w)
}

// Barrier returns when all ranks have called it.
//
// Collective and blocking; queued on a view made by [ubcoll.Comm.On]; collectives of a communicator run in call order.
// Allowed in groups and in capture. It returns the usual errors of the package: ErrBusy, ErrClosed, ErrPeerLost,
// ErrTimeout, ErrAborted and the context's. Source: MPI_Barrier (MPI-4.1, 6.3).
func Barrier(ctx context.Context, c *ubcoll.Comm) error {
	v := (*inside.Comm)(c).View()
	w, err := v.Begin()
	if err != nil {
		return err
	}
	w.Kind, w.Path = team.KindBarrier, &barrierPath
	if v.SpansHosts() {
		w.Path = &acrossBarrierPath
	}
	if onDevice(v, w) {
		placeOnDevice(v, w)
	}
	return v.End(ctx, w)
}

// begin starts the description of an operation; end submits it.
func begin(c *ubcoll.Comm, k team.OpKind, dst, src ubcoll.Vec, op ubcoll.Op, root int) (*team.Work, error) {
	w, err := (*inside.Comm)(c).View().Begin()
	if err != nil {
		return nil, err
	}
	o := inside.Op(op).Team()
	w.Kind, w.Type, w.Root, w.Red, w.Factor = k, src.Type(), root, o.Red, o.Factor
	w.Src, w.Dst = *(*inside.Vec)(&src).Team(), *(*inside.Vec)(&dst).Team()
	return w, nil
}

func end(ctx context.Context, c *ubcoll.Comm, w *team.Work) error {
	v := (*inside.Comm)(c).View()
	if w.Err == nil && uint(w.Root) >= uint(c.Size()) {
		w.Err = fmt.Errorf("root %d of %d ranks: %w", w.Root, c.Size(), fault.ErrArgument)
	}
	switch {
	case onDevice(v, w) && placeOnDevice(v, w), w.Err != nil:
	default:
		choosePath(v.Comm.Team(), w)
	}
	return v.End(ctx, w)
}

// notInPlace is a distance that no two buffers have.
const notInPlace = -1 << 62

// check returns what is wrong with this rank's arguments. dst and src must have that many elements, and must not
// overlap unless dst begins distance bytes before src.
func check(w *team.Work, dst, src, distance int) error {
	if err := w.Src.Check(); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if err := w.Dst.CheckAs(true); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	switch {
	case isReduction(w.Kind) && (!w.Red.Valid() || w.Type == dtype.Bool) && checkReduction(w) != nil:
		return checkReduction(w)
	case w.Dst.Type != w.Src.Type:
		return fmt.Errorf("the destination has type %v, the source %v: %w", w.Dst.Type, w.Src.Type, fault.ErrArgument)
	case w.Dst.Len != dst:
		return fmt.Errorf("the destination has %d elements, not %d: %w", w.Dst.Len, dst, fault.ErrArgument)
	case w.Src.Len != src:
		return fmt.Errorf("the source has %d elements, not %d: %w", w.Src.Len, src, fault.ErrArgument)
	case w.Count > team.MaxCount:
		return fmt.Errorf("%d elements, more than %d: %w", w.Count, team.MaxCount, fault.ErrLimit)
	}
	return checkOverlap(&w.Dst, &w.Src, distance)
}

// checkReduction returns what is wrong with the reduction.
func checkReduction(w *team.Work) error {
	switch {
	case w.Red == team.Replace:
		return fmt.Errorf("replace is for Window.Accumulate only: %w", fault.ErrArgument)
	case !w.Red.Valid():
		return fmt.Errorf("no such operation (the zero Op): %w", fault.ErrArgument)
	case w.Red != team.Max && w.Red != team.Min:
		return fmt.Errorf("no %v of bools, only max, which is or, and min, which is and: %w", w.Red, fault.ErrArgument)
	}
	return nil
}

func isReduction(k team.OpKind) bool {
	return k == team.KindAllReduce || k == team.KindReduceScatter || k == team.KindReduce
}

func checkOverlap(dst, src *team.Vec, distance int) error {
	p, q := uintptr(dst.Ptr), uintptr(src.Ptr)
	if dst.Len == 0 || src.Len == 0 || p+uintptr(dst.Bytes()) <= q || q+uintptr(src.Bytes()) <= p ||
		int(q-p) == distance {
		return nil
	}
	return fmt.Errorf("destination [%#x,+%d) and source [%#x,+%d) overlap, and not as in place: %w",
		p, dst.Bytes(), q, src.Bytes(), fault.ErrArgument)
}
